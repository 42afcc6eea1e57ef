"""Triton's model control below /v2/repository.

The operator's deploy file decides which models exist. So loading a model of the deploy file wakes it up,
and unloading is refused with advice on what to do instead.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NoReturn

from pydantic import with_config
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from serve_app.api.dialects.triton.answers import IndexEntry
from serve_app.api.dialects.triton.metadata import Found, find
from serve_app.api.edge.body import JSON_TYPE, WireModel, parse_body, read_body
from serve_app.api.edge.connection import reply, reply_json, while_connected
from serve_app.api.exchange.dispatch import too_late, version_of
from serve_app.api.protocol.fields import Boolean, Described
from serve_app.api.services import Services
from serve_app.errors import InvalidField, ModelNotFound


class IndexBody(WireModel):
    ready: Annotated[bool | None, Boolean] = None  # list ready models alone


@with_config(extra="forbid")
class NoParameters(TypedDict, total=False):
    """The accepted parameters of a load request. They have no effect: the deploy file configures models."""

    unload_dependents: Any


class ControlBody(WireModel):
    parameters: Annotated[Any, Described(NoParameters)] = None


class IndexRoute:
    """POST /v2/repository/index."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody or InvalidField."""
        with self._services.bodies.lease() as lease:
            body = parse_body(IndexBody, await read_body(scope, receive, lease.take) or b"{}")
        await reply_json(send, index(self._services, scope, only_ready=bool(body.ready)))


class LoadRoute:
    """POST /v2/repository/models/{model}/load. The answer is sent once the model is ready."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody, InvalidField, Unavailable or DeadlineExceeded."""
        found = await _controlled(self._services, scope, receive, "load")
        await while_connected(receive, self._wake(found, send))

    async def _wake(self, found: Found, send: Send) -> None:
        await load(self._services, found)
        await reply(send, 200, {"content-type": JSON_TYPE}, b"")


class UnloadRoute:
    """POST /v2/repository/models/{model}/unload."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody or InvalidField, because no model can be unloaded here."""
        refuse_to_unload(await _controlled(self._services, scope, receive, "unload"))


def index(services: Services, scope: Scope, *, only_ready: bool) -> list[IndexEntry]:
    """An entry for each version of each model."""
    entries = [
        _entry(endpoint.name, version_of(entity), ready=services.backend.is_ready(entity.app))
        for endpoint in services.endpoints(scope)
        for entity in endpoint.served_entities
    ]
    return [entry for entry in entries if not only_ready or entry["state"] == "READY"]


def _entry(name: str, version: str, *, ready: bool) -> IndexEntry:
    return {
        "name": name,
        "version": version,
        "state": "READY" if ready else "UNAVAILABLE",
        "reason": "" if ready else "no replica of it is ready",
    }


async def load(services: Services, found: Found) -> None:
    """Wait until the model is ready. Raises Unavailable or DeadlineExceeded."""
    try:
        async with asyncio.timeout(services.config.request_timeout_s):
            for entity in found.entities:
                await services.backend.model(entity.app)
    except TimeoutError:
        raise too_late() from None


def refuse_to_unload(found: Found) -> NoReturn:
    """Raises InvalidField."""
    raise InvalidField(
        "model",
        f"failed to unload '{found.name}': models are taken away in the deploy file; "
        "min_replicas: 0 there lets one sleep while it gets no requests",
        joint=None,
    )


def controlled(services: Services, scope: Scope, model: str, parameters: object, what: str) -> Found:
    """The model to load or unload. Raises InvalidField (a 400, as in Triton) for an unknown model."""
    if parameters and not _means_nothing(parameters):
        raise InvalidField("parameters", "the server's deploy file configures models; send none")
    try:
        return find(services, scope, {"model": model})
    except ModelNotFound as error:
        raise InvalidField("model", f"failed to {what} the model: no such model", joint=None) from error


async def _controlled(services: Services, scope: Scope, receive: Receive, what: str) -> Found:
    """Reads the body, and returns the model to control."""
    with services.bodies.lease() as lease:
        body = parse_body(ControlBody, await read_body(scope, receive, lease.take) or b"{}")
    return controlled(services, scope, scope["path_params"]["model"], body.parameters, what)


def _means_nothing(parameters: object) -> bool:
    """Whether the only parameter is the one for unloading dependent models, which has no effect here."""
    return isinstance(parameters, dict) and parameters.keys() <= {"unload_dependents"}
