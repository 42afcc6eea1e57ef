"""What the renderers of chats and completions share: the whole answer, and a stream's chunks and ends.

Objects have their members in OpenVINO Model Server's order, choices first.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from serve_app.api.dialects.chat.answers import Begun
from serve_app.api.dialects.chat.wire import DONE, encode, fingerprint, prompt_entries, sse, usage_totals
from serve_app.api.dialects.ovms import answers
from serve_app.api.dialects.ovms.fields import SharedFields
from serve_app.api.protocol.dialect import Choice
from serve_app.api.protocol.string_error import error_object
from serve_app.errors import ServeError
from serve_app.types import ModelInfo, Usage


class Renderer(ABC):
    """Writes answers. The model is called by the name that the client used."""

    def __init__(self, kind: str, id: str, model: str, info: ModelInfo, body: SharedFields) -> None:
        """`kind` is the value of the answer's member `object`."""
        self._body = body
        self._is_text = body.detokenize is not False
        self._head: Begun = {"created": int(time.time()), "model": model, "object": kind, "id": id}
        self._fingerprint = fingerprint(info)
        usage = b',"usage":null' if body.include_usage else b""
        self._tail = b"}]," + encode(self._head)[1:-1] + usage + b"}\n\n"

    def _piece(self, index: int, content: bytes, *, finish: str | None = None, logprobs: Any = None) -> bytes:
        """The event of one choice; `content`: the JSON of the choice's remaining members."""
        return b'data: {"choices":[{"finish_reason":%b,"index":%d,"logprobs":%b,%b%b' % (
            encode(finish),
            index,
            encode(logprobs),
            content,
            self._tail,
        )

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        listed = list(choices)
        answer: answers.AnyWhole = {
            "choices": [self._choice(i, choice) for i, choice in enumerate(listed)],
            "created": self._head["created"],
            "model": self._head["model"],
            "object": self._head["object"],
            "id": self._head["id"],
            "usage": usage_totals(usage),
            "system_fingerprint": self._fingerprint,
        }
        if self._body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_entries(listed[0].prompt_logprobs or ())
        return encode(answer)

    @abstractmethod
    def _choice(self, index: int, choice: Choice) -> answers.ChatChoice | answers.CompletionChoice:
        """A choice of a whole answer."""

    def end(self, usage: Usage) -> bytes:
        """The bytes that close a complete stream."""
        if not self._body.include_usage:
            return DONE
        chunk: answers.CompletionChunk = {"choices": [], **self._head, "usage": usage_totals(usage)}
        return sse(encode(chunk)) + DONE

    def broken(self, error: ServeError) -> bytes:
        """The end of a failed stream: the error, then the terminator."""
        return sse(error_object(error)) + DONE
