"""POST .../infer: tensors in JSON or as bytes, and one response of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from serve_app.api.dialects.triton.answer.outputs import ResponseBuilder, ResponseForm
from serve_app.api.dialects.triton.dialect import Stop, parse
from serve_app.api.dialects.triton.errors import render_error
from serve_app.api.dialects.triton.role import Role
from serve_app.api.kserve.http_body import BINARY_TYPE, HEADER, BinaryOutputs, decode, encode
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.config import TrtllmConfig
from serve_app.errors import GenerationFailed, ServeError
from serve_app.types import ModelInfo, TokenDelta, Usage


class StopAsked(Exception):
    """The body is not a request for an answer, but asks to end another request."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.id)
        self.stop = stop


class InferDialect:
    """The dialect of tensors, for one request."""

    stream_type = "application/json"  # this route has no stream
    render_error = staticmethod(render_error)

    def __init__(
        self,
        config: TrtllmConfig,
        *,
        model: str,
        version: str | None,
        header_length: str | None,
        role: Role = Role.TENSORS,
    ) -> None:
        """`model` and `version` come from the path. `header_length`: the header for the JSON's length."""
        self._role = role
        self._config = config
        self._model = model
        self._version = version
        self._header_length = header_length

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField, BodyTooLarge or StopAsked."""
        request, binary = decode(raw, self._header_length, model=self._model, version=self._version)
        parsed = parse(request, self._config, can_stream=False, role=self._role)
        if isinstance(parsed, Stop):
            raise StopAsked(parsed)
        renderer = partial(InferRenderer, answer=parsed.answer, binary=binary)
        return parsed.call(endpoint or self._model, renderer, stream=False)


class InferRenderer:
    """Writes the one response. `headers` are complete once the body has been written."""

    def __init__(self, id: str, info: ModelInfo, answer: ResponseForm, binary: BinaryOutputs) -> None:
        self._answers = ResponseBuilder(answer, info)
        self._binary = binary
        self.headers: Mapping[str, str] = {}

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        body, json_length = encode(self._answers.whole(choices), self._binary)
        if json_length is not None:
            self.headers = {"content-type": BINARY_TYPE, HEADER.lower(): str(json_length)}
        return body

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        """Never called, because this route has no stream. Raises GenerationFailed."""
        raise GenerationFailed("this route does not stream")

    def end(self, usage: Usage) -> bytes:
        return b""

    def broken(self, error: ServeError) -> bytes:
        return b""
