"""Pieces of OpenVINO Model Server's answers: the envelope around its choices.

Objects have the product's order of members, choices first. Knows neither bodies nor sockets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from serve_app.api.dialects.chat import wire as openai_wire
from serve_app.api.dialects.chat.wire import DONE, encode, sse
from serve_app.api.protocol.string_error import error_object
from serve_app.errors import ServeError
from serve_app.types import ModelInfo, Usage

STREAM_TYPE: Final = "text/event-stream"


class Envelope:
    """What every object of one answer has besides its choices."""

    def __init__(self, kind: str, id: str, model: str, info: ModelInfo, *, include_usage: bool) -> None:
        """`model` is the name that the client asked for; `include_usage`: with a stream."""
        self._fields = {"created": int(time.time()), "model": model, "object": kind, "id": id}
        self._fingerprint = openai_wire.fingerprint(info)
        self._include_usage = include_usage
        usage = b',"usage":null' if include_usage else b""
        self._tail = b"}]," + encode(self._fields)[1:-1] + usage + b"}\n\n"

    def chunk(self, index: int, content: bytes, *, finish: str | None = None, logprobs: Any = None) -> bytes:
        """The event of one choice, which ends with the members `content`."""
        return b'data: {"choices":[{"finish_reason":%b,"index":%d,"logprobs":%b,%b%b' % (
            b"null" if finish is None else encode(finish),
            index,
            b"null" if logprobs is None else encode(logprobs),
            content,
            self._tail,
        )

    def end(self, usage: Usage) -> bytes:
        """What closes a complete stream."""
        if not self._include_usage:
            return DONE
        return sse(encode({"choices": [], **self._fields, "usage": openai_wire.usage_totals(usage)})) + DONE

    def whole(self, choices: Sequence[Mapping[str, object]], usage: Usage, **more: Any) -> bytes:
        """An answer that is not streamed."""
        return encode(
            {
                "choices": choices,
                **self._fields,
                "usage": openai_wire.usage_totals(usage),
                "system_fingerprint": self._fingerprint,
                **more,
            }
        )


def broken(error: ServeError) -> bytes:
    """The end of a stream that failed: the error, then the terminator."""
    return sse(error_object(error)) + DONE
