"""Ends a running request, when its client sends a tensor `stop` and the request's id."""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from serve_app.api.admission.stoppable import StopKey
from serve_app.api.context import context_of
from serve_app.api.dialects.triton.aliases import endpoint_name
from serve_app.api.dialects.triton.dialect import Stop
from serve_app.api.exchange.dispatch import of_version, version_of
from serve_app.api.services import Services


def find_model(services: Services, scope: Scope, endpoint: str) -> None:
    """Raises ModelNotFound for an unknown endpoint."""
    services.endpoints(scope).resolve(endpoint, services.backend)


def stopped(services: Services, scope: Scope, stop: Stop, version: str | None) -> dict[str, Any]:
    """End the caller's requests with this id in this gateway. Returns an answer without outputs.

    Raises ModelNotFound or VersionNotFound.
    """
    name = endpoint_name(services, scope, stop.model)
    endpoint = services.endpoints(scope).find_known(name, services.backend)
    entities = endpoint.served_entities if version is None else of_version(endpoint, version)
    services.stoppable.stop_all(StopKey.of(context_of(scope), name, stop.id))
    return {"model_name": stop.model, "model_version": version_of(entities[0]), "id": stop.id}
