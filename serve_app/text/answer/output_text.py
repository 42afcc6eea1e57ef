"""The text of one choice: turns ids into text that may be shown, cut at the first stop string.

Combines a detokenizer and a stop matcher. Independent of the engine and of the wire format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serve_app.text.answer.stop import StopMatcher, StopStrings
from serve_app.text.tokens.tokenizer import Tokenizer


class TextStep(NamedTuple):
    """The effect of some new tokens on the text."""

    text: str
    num_tokens_used: int  # of the pushed tokens; the last used one may complete a stop string
    stop: str | None  # the stop string that ended the text


class OutputText:
    """The growing text of one choice.

    >>> step = output.push(token_ids)  # until step.stop or the sequence ends
    >>> tail = output.flush()  # only when it ended without a stop string
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: StopStrings | Iterable[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        continues: bool = False,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        """`continues`: the text continues a raw prompt, so its first space is kept.

        `min_tokens`: a stop string that ends within the first `min_tokens` tokens does not end the text.
        `shown_ids`: special tokens that are shown even if the others are skipped.
        The choices of a request may share one `StopStrings`, whose own `include_stop` then applies.
        """
        stops = stop if isinstance(stop, StopStrings) else StopStrings(stop, include_stop=include_stop)
        self.describe = tokenizer.describe
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=skip_special_tokens, continues=continues, shown_ids=shown_ids
        )
        self._matcher = StopMatcher(stops) if stops.strings else None
        self._left = min_tokens  # tokens until a stop string may end the text
        self._searched = True
        self._show_end = stops.include_stop
        self.stop: str | None = None  # the stop string that ended the text, perhaps only at `flush`

    @property
    def has_stops(self) -> bool:
        """Whether a stop string may end the text."""
        return self._matcher is not None

    def push(self, token_ids: Sequence[int], *, end_token: bool = False, searched: bool = True) -> TextStep:
        """Take the next tokens. After a match, no further tokens are used.

        `end_token`: the last id is the stop token that ended the sequence. That token counts as used, and is
        shown only with `include_stop`. `searched`: whether a stop string may end in these tokens.
        """
        self._searched = searched
        if self.stop is not None:
            return TextStep("", 0, self.stop)
        shown = token_ids[:-1] if end_token and not self._show_end else token_ids
        if self._matcher is None:
            return TextStep(self._detokenizer.push(shown), len(token_ids), None)
        parts: list[str] = []
        for used, token_id in enumerate(shown, start=1):
            may_end, self._left = searched and self._left <= 0, self._left - 1
            text, self.stop = self._matcher.push(self._detokenizer.push((token_id,)), may_end=may_end)
            parts.append(text)
            if self.stop is not None:
                return TextStep("".join(parts), used, self.stop)
        return TextStep("".join(parts), len(token_ids), None)

    def flush(self) -> str:
        """The rest of the text, once the sequence has ended; empty after a match."""
        if self.stop is not None:
            return ""
        tail = self._detokenizer.flush()
        if self._matcher is None:
            return tail
        # Bytes that never became a character may still complete a stop string with U+FFFD.
        text, self.stop = self._matcher.push(tail, may_end=self._searched and self._left < 0)
        return text if self.stop is not None else text + self._matcher.flush()
