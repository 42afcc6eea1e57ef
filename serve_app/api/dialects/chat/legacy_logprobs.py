"""Log-probabilities in the shape of OpenAI's completions: four parallel lists."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from serve_app.api.dialects.chat import answers
from serve_app.api.dialects.chat.wire import logprob_value, name_by_id
from serve_app.types import TextLogprob


class LegacyLogprobs:
    """One object per choice, because an offset depends on all tokens before it."""

    def __init__(self, num_top: int, offset: int = 0, *, by_id: bool = False) -> None:
        """`num_top` alternatives are listed, and the chosen token in addition if it is not one of them.

        `offset`: how many characters of the choice precede the first token. `by_id` names tokens by id.
        """
        self._num_top = num_top
        self._name = name_by_id if by_id else _name
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, tokens: Iterable[TextLogprob]) -> answers.LegacyLogprobs:
        """The lists for the next `tokens`; offsets count characters from the choice's start."""
        names: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token in tokens:
            names.append(self._name(token))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.data))
            if token.logprob is None:
                values.append(None)
                tops.append(None)
            else:
                values.append(logprob_value(token.logprob))
                tops.append(self._top(token, token.logprob))
        return {"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _top(self, token: TextLogprob, logprob: float) -> dict[str, float]:
        found = {
            self._name(other): logprob_value(other.logprob)
            for other in token.top[: self._num_top]
            if other.logprob is not None
        }
        found.setdefault(self._name(token), logprob_value(logprob))
        return found


def _name(token: TextLogprob) -> str:
    """The token's text, or its bytes if they are not valid UTF-8, so that names stay distinct."""
    try:
        token.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.data)
    return token.text
