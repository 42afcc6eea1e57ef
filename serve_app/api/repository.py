"""Triton's model control below /v2/repository, as far as a deployment has it.

Which models there are is the operator's business: the deploy file says it. So loading a model
that is there wakes it up, and unloading is refused with what to do instead.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar

import msgspec
from starlette.types import Receive, Scope, Send

from serve_app.api.body import WireModel, parse_body, read_body
from serve_app.api.connection import reply, while_connected
from serve_app.api.dispatch import too_late, version_of
from serve_app.api.fields import Boolean
from serve_app.api.generate import Services
from serve_app.api.kserve.description import READY, repository_entry
from serve_app.api.kserve_pages import JSON, Found, find
from serve_app.errors import InvalidField, ModelNotFound


class IndexBody(WireModel):
    ready: Annotated[bool | None, Boolean] = None  # only what is ready


class ControlBody(WireModel):
    free_form: ClassVar[tuple[str, ...]] = ("parameters",)

    parameters: Any = None


class IndexRoute:
    """POST /v2/repository/index."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody or InvalidField."""
        services = self._services
        with services.bodies.lease() as lease:
            body = parse_body(IndexBody, await read_body(scope, receive, lease.take) or b"{}")
        entries = [
            repository_entry(endpoint.name, version_of(entity), ready=services.backend.is_ready(entity.app))
            for endpoint in services.directory
            for entity in endpoint.served_entities
        ]
        listed = [entry for entry in entries if not body.ready or entry["state"] == READY]
        await reply(send, 200, JSON, msgspec.json.encode(listed))


class LoadRoute:
    """POST /v2/repository/models/{model}/load: answers once the model can answer."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody, InvalidField, Unavailable or DeadlineExceeded."""
        found = await _controlled(self._services, scope, receive, "load")
        await while_connected(receive, self._wake(found, send))

    async def _wake(self, found: Found, send: Send) -> None:
        services = self._services
        try:
            async with asyncio.timeout(services.config.request_timeout_s):
                for entity in found.entities:
                    await services.backend.model(entity.app)
        except TimeoutError:
            raise too_late() from None
        await reply(send, 200, JSON, b"")


class UnloadRoute:
    """POST /v2/repository/models/{model}/unload."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody or InvalidField, for nothing can be unloaded here."""
        found = await _controlled(self._services, scope, receive, "unload")
        raise InvalidField(
            f"failed to unload '{found.name}': models are taken away in the deploy file; "
            "min_replicas: 0 there puts one to sleep while nobody asks it",
            param="model",
        )


async def _controlled(services: Services, scope: Scope, receive: Receive, what: str) -> Found:
    """The model to control, once its body is read. An unknown one is a 400, as Triton has it."""
    with services.bodies.lease() as lease:
        body = parse_body(ControlBody, await read_body(scope, receive, lease.take) or b"{}")
    if body.parameters and not _means_nothing(body.parameters):
        raise InvalidField(
            "parameters: the server's deploy file configures models; send none", param="parameters"
        )
    try:
        return find(services, scope["path_params"])
    except ModelNotFound as error:
        raise InvalidField(f"failed to {what} the model: no such model", param="model") from error


def _means_nothing(parameters: object) -> bool:
    """Whether all parameters are ones that change nothing here: what else to unload."""
    return isinstance(parameters, dict) and parameters.keys() <= {"unload_dependents"}
