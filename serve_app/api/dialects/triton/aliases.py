"""Triton's aliases of an endpoint, and the part of the endpoint that each means.

TensorRT-LLM's backend serves one model under several names: one for tensors, one for texts (the ensemble),
and one for each step between the two. Settings list the aliases. An endpoint with such a name comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from serve_app.api.dialects.triton.role import Role
from serve_app.api.services import Services
from serve_app.config import TrtllmConfig


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a model's name in a path or a message."""

    endpoint: str  # an endpoint of this name may not exist
    role: Role


def meaning(services: Services, scope: Scope, model: str) -> Meaning:
    """The endpoint with this name, or, for an alias, the caller's first endpoint that generates."""
    role = _role(services.config.trtllm, model)
    endpoints = services.endpoints(scope)
    if role is None or any(endpoint.name == model for endpoint in endpoints):
        return Meaning(model, Role.TENSORS)
    return Meaning(endpoints.first_generating() or model, role)


def endpoint_name(services: Services, scope: Scope, model: str) -> str:
    """The name of the endpoint that a model's name stands for."""
    return meaning(services, scope, model).endpoint


def _role(config: TrtllmConfig, model: str) -> Role | None:
    """The role of an alias; None: the name is no alias."""
    if not model:
        return None
    if model == config.alias:
        return Role.TENSORS
    if model in config.ensemble:
        return Role.ENSEMBLE
    if model == config.preprocessing:
        return Role.PREPROCESSING
    return Role.POSTPROCESSING if model == config.postprocessing else None
