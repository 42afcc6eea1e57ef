"""MindIE's route that ends a running request, given its id."""

from __future__ import annotations

from typing import Annotated

from starlette.types import Receive, Scope, Send

from serve_app.api.admission.stoppable import StopKey
from serve_app.api.context import context_of
from serve_app.api.dialects.mindie.answers import Stopped
from serve_app.api.dialects.mindie.generate import check_id
from serve_app.api.dialects.mindie.metadata import named
from serve_app.api.edge.body import WireModel, parse_body, read_body
from serve_app.api.edge.connection import reply_json
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Text
from serve_app.api.services import Services
from serve_app.errors import InvalidField, RouteNotFound
from serve_app.limits import MAX_HEADER_ID_CHARS


class StopBody(WireModel):
    id: Annotated[str | None, Text(1, MAX_HEADER_ID_CHARS)] = doc(
        "ends the caller's newest running request of this id", accepts=" of A-Z a-z 0-9 _ -", required=True
    )


class StopRoute:
    """POST .../stopInfer: ends the caller's newest request with the given id, if this gateway runs it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidBody, InvalidField, ModelNotFound, VersionNotFound or RouteNotFound."""
        services, context, names = self._services, context_of(scope), scope["path_params"]
        # The gateway's load is not checked: for a full gateway, a stop is the best thing that can arrive.
        with services.bodies.lease() as lease:
            body = parse_body(StopBody, await read_body(scope, receive, lease.take))
        if body.id is None:
            raise InvalidField("id", "is required")
        check_id(body.id)
        named(services, scope)
        if not services.stoppable.stop(StopKey.of(context, names["model"], body.id)):
            raise RouteNotFound("id: no request of this id is running here")
        stopped: Stopped = {"id": body.id}
        await reply_json(send, stopped)
