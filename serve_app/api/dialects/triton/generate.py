"""POST .../generate and generate_stream of Triton: tensors as keys of a JSON object, or a text prompt.

Every top-level key except `id` and `parameters` is a tensor, or a text key of TensorRT-LLM's ensemble.
A key of `parameters` with the name of a tensor counts as that tensor. The response has a key for each
output: a single element is bare, and several are a flat list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from serve_app.api.dialects.triton.answer.outputs import ResponseBuilder, ResponseForm
from serve_app.api.dialects.triton.dialect import Stop, parse
from serve_app.api.dialects.triton.errors import render_error
from serve_app.api.dialects.triton.infer import StopAsked
from serve_app.api.dialects.triton.request.inputs import ACCEPTED, MAY_EXCLUDE, RENAMED, Input
from serve_app.api.dialects.triton.request.values import tensors_of_values
from serve_app.api.dialects.triton.role import Role
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.kserve.http_body import envelope, request_id
from serve_app.api.kserve.json_values import single_to_json
from serve_app.api.kserve.message import InferRequest, InferResponse, Parameter
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.string_error import error_object
from serve_app.config import TrtllmConfig
from serve_app.errors import InvalidField, ServeError
from serve_app.types import ModelInfo, TokenDelta, Usage

STREAM_TYPE: Final = "text/event-stream; charset=utf-8"


class GenerateBody(WireModel):
    """The body; keys other than these two are tensors or text keys."""

    may_be_infinite: ClassVar[tuple[str, ...]] = MAY_EXCLUDE

    id: Any = None
    parameters: Any = None

    def split(self, table: Mapping[str, Input] = ACCEPTED) -> tuple[dict[str, Any], dict[str, Parameter]]:
        """The values that are not null, by key, and the request's parameters. Raises InvalidField."""
        nested = {} if self.parameters is None else self.parameters
        if not isinstance(nested, dict):
            raise InvalidField("parameters", "must be an object")
        values = self.extra
        parameters: dict[str, Parameter] = {}
        for key, value in nested.items():
            if key in table or key in RENAMED:
                if key in values:
                    raise InvalidField(
                        key, "must not be given both at the top level and among the parameters"
                    )
                if value is not None:
                    values[key] = value
            elif isinstance(value, bool | int | float | str):
                parameters[key] = value
        return values, parameters


class GenerateDialect:
    """The dialect of values, for one request: values in, values out."""

    stream_type = STREAM_TYPE
    render_error = staticmethod(render_error)

    def __init__(
        self,
        config: TrtllmConfig,
        *,
        model: str,
        version: str | None,
        stream: bool,
        role: Role = Role.TENSORS,
    ) -> None:
        """`model` and `version` come from the path. `stream`: whether the route answers with events."""
        self._role = role
        self._config = config
        self._model = model
        self._version = version
        self._stream = stream

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField, PromptTooLong or StopAsked."""
        body = parse_body(GenerateBody, raw)
        values, parameters = body.split()
        request = InferRequest(
            model=self._model,
            version=self._version,
            id=request_id(body.id),
            inputs=tensors_of_values(values, self._model),
            parameters=parameters,
        )
        parsed = parse(request, self._config, can_stream=self._stream, role=self._role)
        if isinstance(parsed, Stop):
            raise StopAsked(parsed)
        if len(parsed.requests) > 1:
            raise InvalidField("input_ids", "must hold one prompt; batches are for infer")
        renderer = partial(GenerateRenderer, answer=parsed.answer, streaming=parsed.streaming)
        return parsed.call(endpoint or self._model, renderer, stream=self._stream)


class GenerateRenderer:
    """Writes events, or one object. Unless tokens are streamed, the answer is one event."""

    def __init__(self, id: str, info: ModelInfo, answer: ResponseForm, streaming: bool) -> None:
        self._answers = ResponseBuilder(answer, info)
        self._streaming = streaming
        self._choices: dict[int, Choice] = {}  # of an answer that becomes one event

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        if not self._streaming:
            self._choices.setdefault(delta.index, Choice()).add(delta)
            return b""
        responses = self._answers.push(prompt, delta)
        return b"".join(_event(value_object(each)) for each in responses if each.outputs)

    def end(self, usage: Usage) -> bytes:
        if self._streaming:
            return b""
        choices = [self._choices[index] for index in sorted(self._choices)]
        try:
            return b"".join(_event(value_object(each)) for each in self._answers.several(choices))
        except ServeError as error:
            return self.broken(error)

    def broken(self, error: ServeError) -> bytes:
        return _event(error_object(error))

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        return value_object(self._answers.whole(choices))


def value_object(response: InferResponse) -> bytes:
    """A response as a JSON object, in which outputs of one element are bare and others are flat lists.

    Raises InvalidField if the outputs have more numbers than the JSON may hold.
    """
    outputs = {name: single_to_json(name, tensor) for name, tensor in response.outputs.items()}
    return msgspec.json.encode({**envelope(response), **outputs})


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
