"""KServe's statistics of models: this gateway's counts, with an entry for each version of each model."""

from __future__ import annotations

from starlette.types import Scope

from serve_app.api.dialects.triton import answers
from serve_app.api.dialects.triton.metadata import Found, find
from serve_app.api.dialects.triton.role import Role
from serve_app.api.exchange.dispatch import version_of
from serve_app.api.services import Services
from serve_app.telemetry import AnswerCounts
from serve_app.types import EngineStats

_NONE: answers.Duration = {"count": 0, "ns": 0}


def statistics(services: Services, scope: Scope, names: dict[str, str] | None = None) -> answers.Statistics:
    """The statistics of the model in `names`, or of all models of the caller.

    Raises ModelNotFound or VersionNotFound.
    """
    if names is not None:
        models = [find(services, scope, names)]
    else:
        everything = services.endpoints(scope)
        models = [Found(each.name, Role.TENSORS, each, each.served_entities) for each in everything]
    engines = services.backend.stats()
    return {
        "model_stats": [
            _entry(
                found.name,
                version_of(entity),
                services.metrics.served(found.endpoint.name, entity.name),
                engines.get(entity.app),
            )
            for found in models
            for entity in found.entities
        ]
    }


def _entry(
    name: str, version: str, served: AnswerCounts, engine: EngineStats | None
) -> answers.ModelStatistics:
    """The entry of a model's version. Executions count engine steps; figures that are not measured are 0."""
    return {
        "name": name,
        "version": version,
        "last_inference": round(served.last * 1e3),
        "inference_count": served.successes,
        "execution_count": 0 if engine is None else engine.steps,
        "inference_stats": {
            "success": {"count": served.successes, "ns": round(served.success_s * 1e9)},
            "fail": {"count": served.failures, "ns": round(served.failure_s * 1e9)},
            "queue": _NONE,
            "compute_input": _NONE,
            "compute_infer": _NONE,
            "compute_output": _NONE,
            "cache_hit": _NONE,
            "cache_miss": _NONE,
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }
