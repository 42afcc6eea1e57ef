"""A route of the management API: turns a checked request into commands, and their replies into an answer.

Errors have Databricks' shape, whatever protocol the request names. Independent of single commands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.backend import Management
from serve_app.api.context import context_of
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.directory import CallerView
from serve_app.api.edge.body import read_body
from serve_app.api.edge.connection import reply, reply_in_parts, reply_json
from serve_app.api.edge.query import checked_query
from serve_app.api.management.strict_body import NoBody, StrictBody, parse_strict
from serve_app.api.openapi.operation import Operation
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import ModelNotFound, RouteNotFound, ServeError, Unauthenticated
from serve_app.limits import MAX_MANAGEMENT_BODY_BYTES, MAX_MODEL_NAME_CHARS
from serve_app.types import Caller, Scope
from serve_app.types.control import AwaitChanges, Change, Command, EndpointShown, GetEndpoint, ReplyT

IS_OFF: Final = (
    "this server has no control plane, so it is managed by its deploy file alone; "
    "set control.enabled in the Gateway's config to manage it over this API"
)
BEHIND: Final = "x-gateways-behind"  # the number of gateways in which the change is not in force yet

BodyT = TypeVar("BodyT", bound=StrictBody)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Generic[BodyT]):
    """One checked request to a route of the management API."""

    services: Services
    management: Management
    caller: Caller
    path: Mapping[str, str]  # the parameters of the path, by name
    query: Mapping[str, str]  # of several values of one name the last
    body: BodyT
    headers: dict[str, str] = field(default_factory=dict)  # of the answer

    @property
    def view(self) -> CallerView:
        """The endpoints as the caller may see them."""
        return self.services.directory.seen_by(self.caller)

    async def endpoint(self) -> EndpointShown:
        """The endpoint that the path names. Raises ModelNotFound if there is none that the caller may see."""
        name = self.path["endpoint"]
        if not self.view.shows(name):
            raise ModelNotFound("name", f"there is no endpoint {name!r}")
        return await self.do(GetEndpoint(name=name))

    async def do(self, command: Command[ReplyT]) -> ReplyT:
        """The control plane's reply to `command`; for a change, after gateways apply it. Raises ServeError.

        A header has the number of gateways that do not apply the change yet.
        """
        reply = await self.management.do(command, self.caller)
        if isinstance(command, Change):
            await self._follow(command.changed_endpoint)
        return reply

    async def _follow(self, endpoint: str) -> None:
        try:
            behind = (await self.management.do(AwaitChanges(endpoint=endpoint), self.caller)).behind
        except ServeError:  # what was changed stays changed
            self.headers[BEHIND] = "unknown"
            return
        if behind:
            self.headers[BEHIND] = str(behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer that is not JSON: the whole `body`, or `parts` if it is long."""

    body: bytes = b""
    parts: Iterable[bytes] | None = None
    media: str
    headers: Mapping[str, str] = field(default_factory=dict)


Handle = Callable[[Asked[BodyT]], Awaitable[Mapping[str, object] | Page]]


class CommandRoute(Generic[BodyT]):
    """An ASGI app for one route."""

    def __init__(self, services: Services, handle: Handle[BodyT], body: type[BodyT]) -> None:
        """`body` is the model of the route's body; `NoBody` if it has none."""
        self._services = services
        self._handle = handle
        self._body = body

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises ServeError only before the answer, and ClientGone while the body is read."""
        context = context_of(scope)
        context.render_error = render_error
        management = self._services.management
        if management is None:
            raise RouteNotFound(IS_OFF)
        if context.caller is None:
            raise Unauthenticated("an API key is required")
        self._services.admission.check()
        asked = Asked(
            services=self._services,
            management=management,
            caller=context.caller,
            path=_checked_path(scope["path_params"]),
            query=checked_query(scope["query_string"]),
            body=await self._read(scope, receive),
        )
        answer = await self._handle(asked)
        if isinstance(answer, Page):
            headers = {"content-type": answer.media, **answer.headers, **asked.headers}
            if answer.parts is None:
                await reply(send, 200, headers, answer.body)
            else:
                await reply_in_parts(send, 200, headers, answer.parts)
        else:
            await reply_json(send, answer, headers=asked.headers)

    async def _read(self, scope: AsgiScope, receive: Receive) -> BodyT:
        if self._body is NoBody:
            return self._body()
        with self._services.bodies.lease() as lease:
            raw = await read_body(scope, receive, lease.take, max_bytes=MAX_MANAGEMENT_BODY_BYTES)
            return await self._services.aside(len(raw), self._parse, raw)

    def _parse(self, raw: bytes) -> BodyT:
        return parse_strict(self._body, raw)


def command_entry(
    services: Services,
    method: str,
    path: str,
    handle: Handle[Any],
    operation: Operation,
    scope: Scope = Scope.MANAGE,
    *others: Scope,
) -> Entry:
    """The entry of a route. `operation` has the model of the body; `others` is `Entry.other_scopes`."""
    body = operation.bodies[0].type if operation.bodies else NoBody
    app = CommandRoute(services, handle, body)
    return Entry(method, path, app, scope, operation=operation, other_scopes=others)


def _checked_path(path: Mapping[str, str]) -> Mapping[str, str]:
    """Raises ModelNotFound for a name that is longer than endpoint names can be."""
    for name, value in path.items():
        if len(value) > MAX_MODEL_NAME_CHARS:
            raise ModelNotFound(name, "there is nothing of this name")
    return path
