"""The shapes of the pages that belong to no protocol."""

from __future__ import annotations

from typing import Literal, NotRequired, final

from typing_extensions import TypedDict


class Live(TypedDict):
    """The process answers."""

    status: Literal["live"]


class Ready(TypedDict):
    """Every endpoint can answer. The reasons for `degraded` are shown only to callers who may list models."""

    status: Literal["ready", "degraded"]
    reasons: NotRequired[list[str]]


class NotReady(TypedDict):
    """An endpoint has no entity that can answer, or the gateway is shutting down."""

    status: Literal["not ready"]
    reasons: NotRequired[list[str]]


@final
class Precision(TypedDict, total=False):
    """The data type of a model's weights, and the quantisation of its linear layers."""

    dtype: str
    quantization: str


class ServedEntity(TypedDict):
    """One model of an endpoint, and its share of the requests in percent."""

    name: str
    model: str
    version: str | None
    traffic: int
    ready: bool
    dtype: NotRequired[str]
    quantization: NotRequired[str]
    generation_config: dict[str, float]


class ModelEntry(TypedDict):
    """An endpoint, or an adapter of its model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: NotRequired[int]
    task: str
    kind: str
    served_entities: list[ServedEntity]
    parent: NotRequired[str]


class ModelList(TypedDict):
    """The endpoints that can answer."""

    object: Literal["list"]
    data: list[ModelEntry]
