"""POST .../generate and generate_stream of Triton: tensors as keys of a JSON object, or a text prompt.

Every top-level key but `id` and `parameters` is a tensor, or one of the text keys of the product's
ensemble; so is a key of `parameters` that has such a name. The response has a key an output: a
single element bare, more as a flat list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from serve_app import limits
from serve_app.api.body import WireModel, parse_body
from serve_app.api.dialects.base import Call, Choice, ErrorReply
from serve_app.api.dialects.mindie_generate import Parameters as MindieParameters
from serve_app.api.dialects.trtllm import Stop, parse
from serve_app.api.dialects.trtllm_errors import error_object, render_error
from serve_app.api.dialects.trtllm_infer import StopAsked
from serve_app.api.dialects.trtllm_inputs import ALIASES, INPUTS
from serve_app.api.dialects.trtllm_outputs import Answer, Answers
from serve_app.api.dialects.trtllm_request import PromptText
from serve_app.api.dialects.trtllm_values import tensors_of_values
from serve_app.api.kserve.datatype import refused
from serve_app.api.kserve.http_body import envelope, request_id
from serve_app.api.kserve.json_values import single_to_json
from serve_app.api.kserve.message import InferRequest, InferResponse, Parameter
from serve_app.config import TrtllmConfig
from serve_app.errors import InvalidField, PromptTooLong, ServeError
from serve_app.types import ModelInfo, TokenDelta, Usage

STREAM_TYPE: Final = "text/event-stream; charset=utf-8"

# Text key -> the tensor that has its value.
RENAMED: Final[Mapping[str, str]] = {
    "max_tokens": "request_output_len",
    "stream": "streaming",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    **ALIASES,
}
TEXT_INPUT: Final = "text_input"
BAD_WORDS: Final = "bad_words"
STOP_WORDS: Final = "stop_words"
_TEXTS: Final = (TEXT_INPUT, BAD_WORDS, STOP_WORDS)

_SHARED: Final = frozenset({"id", TEXT_INPUT, "parameters"})  # top-level keys of both protocols
_OURS: Final = frozenset((*INPUTS, *RENAMED, BAD_WORDS, STOP_WORDS)) - MindieParameters.model_fields.keys()


def is_tritons(raw: bytes) -> bool:
    """Whether a body is Triton's and not MindIE's, whose route it shares.

    It is when it has a key that MindIE's never have, at the top or (D-2a) among the parameters. What
    is no JSON object is MindIE's.
    """
    try:
        body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if not body.keys() <= _SHARED:
            return True
        nested = body.get("parameters")
        return nested is not None and not _OURS.isdisjoint(
            msgspec.json.decode(nested, type=dict[str, msgspec.Raw])
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class GenerateBody(WireModel):
    """All other keys are tensors or text keys."""

    free_form: ClassVar[tuple[str, ...]] = ("id", "parameters")

    id: Any = None
    parameters: Any = None

    def split(self) -> tuple[dict[str, Any], dict[str, Parameter]]:
        """Values by key, null ones left out, and the request's parameters. Raises InvalidField."""
        nested = {} if self.parameters is None else self.parameters
        if not isinstance(nested, dict):
            raise InvalidField("parameters: must be an object", param="parameters")
        values = {key: value for key, value in (self.__pydantic_extra__ or {}).items() if value is not None}
        parameters: dict[str, Parameter] = {}
        for key, value in nested.items():
            if key in INPUTS or key in RENAMED or key in _TEXTS:
                if key in values:
                    raise refused(key, "must not be given both at the top level and among the parameters")
                if value is not None:
                    values[key] = value
            elif isinstance(value, bool | int | float | str):
                parameters[key] = value
        return values, parameters


class GenerateDialect:
    """Values in, values out; for one request."""

    stream_type = STREAM_TYPE

    def __init__(self, config: TrtllmConfig, *, model: str, version: str | None, stream: bool) -> None:
        """`model` and `version` as the path has them; `stream`: the route's answers are events."""
        self._config = config
        self._model = model
        self._version = version
        self._stream = stream

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField, PromptTooLong or StopAsked."""
        body = parse_body(GenerateBody, raw)
        values, parameters = body.split()
        text, values = _text(values)
        request = InferRequest(
            model=self._model,
            version=self._version,
            id=request_id(body.id),
            inputs=tensors_of_values(values, text.names, self._model),
            parameters=parameters,
        )
        parsed = parse(request, self._config, can_stream=self._stream, text=text)
        if isinstance(parsed, Stop):
            raise StopAsked(parsed)
        if len(parsed.requests) > 1:
            raise refused("input_ids", "must hold one prompt; batches are for infer")
        renderer = partial(GenerateRenderer, answer=parsed.answer, streaming=parsed.streaming)
        return parsed.call(endpoint or self._model, renderer, stream=self._stream)

    def render_error(self, error: ServeError) -> ErrorReply:
        return render_error(error)


class GenerateRenderer:
    """Writes events, or the one object; an answer that is not streamed is one event."""

    def __init__(self, id: str, info: ModelInfo, answer: Answer, streaming: bool) -> None:
        self._answers = Answers(answer, info)
        self._streaming = streaming
        self._choices: dict[int, Choice] = {}  # of an answer that will be one event

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        if not self._streaming:
            self._choices.setdefault(delta.index, Choice()).add(delta)
            return b""
        responses = self._answers.push(delta)
        return b"".join(_event(value_object(each)) for each in responses if each.outputs)

    def end(self, usage: Usage) -> bytes:
        if self._streaming:
            return b""
        try:
            return _event(self.whole([self._choices[index] for index in sorted(self._choices)], usage))
        except ServeError as error:
            return self.broken(error)

    def broken(self, error: ServeError) -> bytes:
        return _event(error_object(error))

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        return value_object(self._answers.whole(choices, usage))


def value_object(response: InferResponse) -> bytes:
    """A response as a JSON object: outputs of one element bare, others as flat lists.

    Raises InvalidField for more numbers than JSON may have.
    """
    outputs = {name: single_to_json(name, tensor) for name, tensor in response.outputs.items()}
    return msgspec.json.encode({**envelope(response), **outputs})


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _text(values: Mapping[str, Any]) -> tuple[PromptText, dict[str, Any]]:
    """What comes as text, and the values of tensors under the tensors' names. Raises InvalidField."""
    rest: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in values.items():
        if key in _TEXTS:
            continue
        own = RENAMED.get(key, key)
        if own in rest:
            raise refused(key, f"must not be given beside {names.get(own, own)}")
        rest[own] = value
        if own != key:
            names[own] = key
    prompt = values.get(TEXT_INPUT)
    if prompt is not None:
        _check_prompt(prompt, rest)
        names["input_ids"] = TEXT_INPUT
    words = {key: _strings(key, values.get(key), most) for key, most in _MOST.items()}
    for key, tensor in ((BAD_WORDS, "bad_words_list"), (STOP_WORDS, "stop_words_list")):
        if words[key]:
            names.setdefault(tensor, key)
    text = PromptText(prompt=prompt, bad_words=words[BAD_WORDS], stop_words=words[STOP_WORDS], names=names)
    return text, rest


_MOST: Final = {BAD_WORDS: limits.MAX_BAD_WORDS, STOP_WORDS: limits.MAX_STOP_STRINGS}


def _check_prompt(prompt: object, rest: Mapping[str, Any]) -> None:
    for name in ("input_ids", "input_lengths"):
        if name in rest:
            raise refused(TEXT_INPUT, f"must not be given beside {name}")
    most = limits.MAX_PROMPT_CHARS
    if not isinstance(prompt, str) or not prompt:
        raise refused(TEXT_INPUT, f"must be a string of 1 to {most} characters")
    if len(prompt) > most:
        raise PromptTooLong(f"{TEXT_INPUT}: must be a string of 1 to {most} characters", param=TEXT_INPUT)


def _strings(key: str, value: object, most: int) -> tuple[str, ...]:
    """A string or a list of strings; empty ones are none."""
    items = [value] if isinstance(value, str) else value or []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise refused(key, "must be a string or a list of strings")
    found = tuple(item for item in items if item)
    if len(found) > most or any(len(item) > limits.MAX_STOP_CHARS for item in found):
        raise refused(key, f"must hold at most {most} strings of up to {limits.MAX_STOP_CHARS} characters")
    return found
