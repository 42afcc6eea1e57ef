"""What the renderers of chats and completions share: an answer that is not streamed, and a stream's ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from serve_app.api.dialects.chat.wire import prompt_entries
from serve_app.api.dialects.ovms import wire
from serve_app.api.dialects.ovms.fields import SharedFields
from serve_app.api.protocol.dialect import Choice
from serve_app.errors import ServeError
from serve_app.types import ModelInfo, Usage

BodyT = TypeVar("BodyT", bound=SharedFields)
ChoiceT = TypeVar("ChoiceT", bound=Mapping[str, object])


class Renderer(ABC, Generic[BodyT, ChoiceT]):
    """Writes answers. The model is called as the client called it."""

    def __init__(self, kind: str, id: str, model: str, info: ModelInfo, body: BodyT) -> None:
        """`kind` is the value of the answer's member `object`."""
        self._envelope = wire.Envelope(kind, id, model, info, include_usage=body.include_usage)
        self._body = body
        self._is_text = body.detokenize is not False

    @abstractmethod
    def _choice(self, index: int, choice: Choice) -> ChoiceT: ...

    def end(self, usage: Usage) -> bytes:
        return self._envelope.end(usage)

    def broken(self, error: ServeError) -> bytes:
        return wire.broken(error)

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        listed = list(choices)
        more: dict[str, Any] = {}
        if self._body.prompt_logprobs is not None:
            more["prompt_logprobs"] = prompt_entries(listed[0].prompt_logprobs or ())
        return self._envelope.whole([self._choice(i, c) for i, c in enumerate(listed)], usage, **more)
