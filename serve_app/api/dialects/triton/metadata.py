"""Descriptions of a server and of models that take tensors: metadata, configuration, statistics.

Bodies in Triton's shapes, made from arguments alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from serve_app.api.dialects.triton import answers
from serve_app.api.edge.version import VERSION
from serve_app.telemetry import AnswerCounts
from serve_app.types import EngineStats

EXTENSIONS: Final = (
    "binary_tensor_data",
    "parameters",
    "generate",
    "model_configuration",
    "model_repository",
    "statistics",
)

PLATFORM: Final = "torch_transformers"


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor of a model: the batch's dimension first; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    is_optional: bool = False


def server_metadata(v1_dialect: str) -> answers.ServerPage:
    """The body of GET /v2."""
    return {"name": "serve-app", "version": VERSION, "extensions": [*EXTENSIONS, f"v1_dialect={v1_dialect}"]}


def model_metadata(
    name: str, versions: Sequence[str], inputs: Sequence[TensorShape], outputs: Sequence[TensorShape]
) -> answers.ModelPage:
    """The body of GET of a model."""
    return {
        "name": name,
        "versions": list(versions),
        "platform": PLATFORM,
        "inputs": [_metadata(each) for each in inputs],
        "outputs": [_metadata(each) for each in outputs],
    }


def _metadata(tensor: TensorShape) -> answers.TensorMetadata:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def model_config(
    name: str,
    inputs: Sequence[TensorShape],
    outputs: Sequence[TensorShape],
    max_batch_size: int,
    parameters: Mapping[str, object],
    *,
    decoupled: bool = True,
) -> answers.ModelConfig:
    """The body of GET .../config; dimensions are those without the batch.

    `decoupled`: a request may have any number of responses.
    """
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": "serve-app",
        "max_batch_size": max_batch_size,
        "input": [{**_config(each), "optional": each.is_optional} for each in inputs],
        "output": [_config(each) for each in outputs],
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {key: {"string_value": str(value)} for key, value in parameters.items()},
    }


def _config(tensor: TensorShape) -> answers.OutputConfig:
    word = {"BYTES": "STRING"}.get(tensor.datatype, tensor.datatype)
    return {"name": tensor.name, "data_type": f"TYPE_{word}", "dims": list(tensor.shape[1:])}


def model_statistics(
    name: str, model_version: str, served: AnswerCounts, engine: EngineStats | None
) -> answers.ModelStatistics:
    """One entry of `model_stats`. Executions are steps of the engine; figures that are not measured are 0."""
    none: answers.Duration = {"count": 0, "ns": 0}
    return {
        "name": name,
        "version": model_version,
        "last_inference": round(served.last * 1e3),
        "inference_count": served.successes,
        "execution_count": 0 if engine is None else engine.steps,
        "inference_stats": {
            "success": {"count": served.successes, "ns": round(served.success_s * 1e9)},
            "fail": {"count": served.failures, "ns": round(served.failure_s * 1e9)},
            "queue": none,
            "compute_input": none,
            "compute_infer": none,
            "compute_output": none,
            "cache_hit": none,
            "cache_miss": none,
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def repository_entry(name: str, model_version: str, *, ready: bool) -> answers.IndexEntry:
    """One entry of the repository's index."""
    return {
        "name": name,
        "version": model_version,
        "state": "READY" if ready else "UNAVAILABLE",
        "reason": "" if ready else "no replica of it is ready",
    }
