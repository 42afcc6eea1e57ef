"""What the renderers of chats and completions share: the chunks of a stream, and its ends.

Objects have the product's order of members, choices first.
"""

from __future__ import annotations

import time
from typing import Any

from serve_app.api.dialects.chat.answers import Begun
from serve_app.api.dialects.chat.wire import DONE, encode, fingerprint, sse, usage_totals
from serve_app.api.dialects.ovms import answers
from serve_app.api.protocol.string_error import error_object
from serve_app.errors import ServeError
from serve_app.types import ModelInfo, Usage


class Renderer:
    """Writes answers. The model is called as the client called it."""

    def __init__(self, kind: str, id: str, model: str, info: ModelInfo, *, include_usage: bool) -> None:
        """`kind` is the value of the answer's member `object`; `include_usage`: with a stream."""
        self._head: Begun = {"created": int(time.time()), "model": model, "object": kind, "id": id}
        self._fingerprint = fingerprint(info)
        self._include_usage = include_usage
        usage = b',"usage":null' if include_usage else b""
        self._tail = b"}]," + encode(self._head)[1:-1] + usage + b"}\n\n"

    def _piece(self, index: int, content: bytes, *, finish: str | None = None, logprobs: Any = None) -> bytes:
        """The event of one choice, which ends with the members `content`."""
        return b'data: {"choices":[{"finish_reason":%b,"index":%d,"logprobs":%b,%b%b' % (
            encode(finish),
            index,
            encode(logprobs),
            content,
            self._tail,
        )

    def end(self, usage: Usage) -> bytes:
        """What closes a complete stream."""
        if not self._include_usage:
            return DONE
        chunk: answers.CompletionChunk = {"choices": [], **self._head, "usage": usage_totals(usage)}
        return sse(encode(chunk)) + DONE

    def broken(self, error: ServeError) -> bytes:
        """The end of a stream that failed: the error, then the terminator."""
        return sse(error_object(error)) + DONE
