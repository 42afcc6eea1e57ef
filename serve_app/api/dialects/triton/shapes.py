"""The shapes of Triton's bodies, derived from the tables of tensors, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NotRequired, TypeAlias

from pydantic import Field, WithJsonSchema

from serve_app import limits
from serve_app.api.dialects.triton.ensemble import postprocessing, preprocessing
from serve_app.api.dialects.triton.request.inputs import ACCEPTED, RENAMED, Input, Rank
from serve_app.api.kserve.datatype import BYTES, ELEMENTS
from serve_app.api.kserve.http_body import MAX_INPUTS
from serve_app.api.kserve.message import Parameter
from serve_app.api.protocol.fields import Open, words

Datatype: TypeAlias = Annotated[str, words((*ELEMENTS, BYTES))]
Parameters: TypeAlias = dict[str, Parameter | None]
Id: TypeAlias = Annotated[str, Field(max_length=limits.MAX_TENSOR_ID_CHARS)]


class InputTensor(Open):
    """An input, whose data are in the JSON or are the `binary_data_size` bytes after the JSON."""

    name: Annotated[str, Field(min_length=1)]
    datatype: Datatype
    shape: list[Annotated[int, Field(ge=0)]]
    data: NotRequired[Any]
    parameters: NotRequired[Parameters | None]


class WantedOutput(Open):
    """An output that the client asks for; it comes as bytes if its parameter `binary_data` is set."""

    name: Annotated[str, Field(min_length=1)]
    parameters: NotRequired[Parameters | None]


InputTensors: TypeAlias = Annotated[list[InputTensor], Field(min_length=1, max_length=MAX_INPUTS)]
WantedOutputs: TypeAlias = Annotated[list[WantedOutput], Field(max_length=MAX_INPUTS)]


class InferBody(Open):
    """Tensors in JSON."""

    id: NotRequired[Id | None]
    parameters: NotRequired[Parameters | None]
    inputs: InputTensors
    outputs: NotRequired[WantedOutputs | None]


def value_schema(datatype: str, spec: Input | None = None, *, is_answer: bool = False) -> dict[str, Any]:
    """The JSON of a tensor: the bare element, a flat list, or lists nested as deep as the tensor's rank.

    `spec` adds its bounds. An answer has no nested lists.
    """
    element = _element(datatype, spec)
    if is_answer:
        return {"anyOf": [element, {"type": "array", "items": element}]}
    if spec is None or spec.rank is Rank.SCALAR:
        return {"anyOf": [element, {"type": "array", "items": element, "minItems": 1, "maxItems": 1}]}
    listed = {"type": "array", "items": element}
    if spec.rank is Rank.VECTOR:
        return {"anyOf": [element, listed, {"type": "array", "items": listed}]}
    table = {"type": "array", "items": listed}
    return {"anyOf": [listed, table, {"type": "array", "items": table}]}


def _element(datatype: str, spec: Input | None) -> dict[str, Any]:
    if datatype == BYTES:
        return {"type": "string"}
    if datatype == "BOOL":
        return {"type": "boolean"}
    kind = {"type": "number" if datatype.startswith(("FP", "BF")) else "integer"}
    if spec is None:
        return kind
    low = {"exclusiveMinimum" if spec.above else "minimum": spec.low}
    bounded = {**kind, **low, "maximum": spec.high}
    return {"anyOf": [bounded, {"type": "boolean"}]} if "BOOL" in spec.also else bounded


def _value(spec: Input) -> dict[str, Any]:
    found = {"anyOf": [*value_schema(spec.datatype, spec)["anyOf"], {"type": "null"}]}
    default = {} if spec.default is None else {"default": spec.default}
    told = f"{spec.datatype}, shape {[-1, *spec.shape]}" + (", required" if spec.required else "")
    return {**found, **default, "description": told}


def _values(table: Mapping[str, Input], what: str) -> WithJsonSchema:
    properties = {name: _value(spec) for name, spec in table.items()}
    own = {"id": {"type": ["string", "null"], "maxLength": limits.MAX_TENSOR_ID_CHARS}}
    parameters = {"type": ["object", "null"], "description": "Parameters, or tensors by their names."}
    return WithJsonSchema(
        {
            "type": "object",
            "description": what,
            "properties": {**own, "parameters": parameters, **properties},
            "additionalProperties": False,
        }
    )


_ALL: Final = {**ACCEPTED, **{name: ACCEPTED[own] for name, own in RENAMED.items()}}

Values = _values(_ALL, "A tensor or a text under its name.")
PreprocessingValues = _values(preprocessing.INPUTS, "Texts that become tokens.")
PostprocessingValues = _values(postprocessing.INPUTS, "Tokens that become texts.")
