"""The shapes of Triton's answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from serve_app.api.dialects.triton.answer.output_table import ENSEMBLE_OUTPUTS, OUTPUTS
from serve_app.api.dialects.triton.ensemble import postprocessing, preprocessing
from serve_app.api.dialects.triton.shapes import Datatype, value_schema

_VALUES = {
    name: value_schema(output.datatype, is_answer=True)
    for table in (OUTPUTS, ENSEMBLE_OUTPUTS, preprocessing.OUTPUTS, postprocessing.OUTPUTS)
    for name, output in table.items()
}
_HEAD = {"model_name": {"type": "string"}, "model_version": {"type": "string"}, "id": {"type": "string"}}

Values = WithJsonSchema(
    {
        "type": "object",
        "description": "An output under its name: a single element bare, more as a flat list.",
        "properties": {**_HEAD, **_VALUES},
        "required": ["model_name", "model_version"],
        "additionalProperties": False,
    }
)


class OutputTensor(TypedDict):
    """An output, whose data are in the JSON or in the bytes after the JSON."""

    name: str
    datatype: Datatype
    shape: list[int]
    data: NotRequired[list[Any]]
    parameters: NotRequired[dict[Literal["binary_data_size"], int]]


class Inference(TypedDict):
    """The one response to `infer`."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[OutputTensor]


class ServerPage(TypedDict):
    """The server's name, version and extensions."""

    name: str
    version: str
    extensions: list[str]


class Live(TypedDict):
    """The server answers."""

    live: Literal[True]


class Ready(TypedDict):
    """The server can answer for all of its models."""

    ready: Literal[True]


class NotReady(TypedDict):
    """Why the server cannot answer for all of its models."""

    ready: Literal[False]
    error: str


class TensorMetadata(TypedDict):
    """A tensor. The first dimension is the batch; -1 means any size."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelPage(TypedDict):
    """A model, its versions, its input tensors and its output tensors."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(TypedDict):
    """A model that answers."""

    name: str
    ready: Literal[True]


class OutputConfig(TypedDict):
    """A tensor without the dimension of the batch."""

    name: str
    data_type: str
    dims: list[int]


class InputConfig(OutputConfig):
    """An input tensor, and whether it may be absent."""

    optional: bool


class Transactions(TypedDict):
    """Whether a request may have any number of responses."""

    decoupled: bool


class StringValue(TypedDict):
    """A parameter's value."""

    string_value: str


class ModelConfig(TypedDict):
    """The configuration of a model."""

    name: str
    platform: str
    backend: str
    max_batch_size: int
    input: list[InputConfig]
    output: list[OutputConfig]
    model_transaction_policy: Transactions
    parameters: dict[str, StringValue]


class Duration(TypedDict):
    """The number of events, and their total time in nanoseconds."""

    count: int
    ns: int


class InferenceStatistics(TypedDict):
    """Requests by outcome; figures that are not measured are 0."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class ModelStatistics(TypedDict):
    """One gateway's counts for one version of a model."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    response_stats: dict[str, Any]
    batch_stats: list[Any]
    memory_usage: list[Any]


class Statistics(TypedDict):
    """An entry for each version."""

    model_stats: list[ModelStatistics]


State: TypeAlias = Literal["READY", "UNAVAILABLE"]


class IndexEntry(TypedDict):
    """One version of one model."""

    name: str
    version: str
    state: State
    reason: str
