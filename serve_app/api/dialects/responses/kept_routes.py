"""The routes about one kept response, named in the path: reading it, listing its input and removing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Final, cast

from pydantic import Field
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.backend import ResponseStore
from serve_app.api.context import context_of
from serve_app.api.dialects.responses.answers import InputItems, ListedItem, RemovedResponse, Response
from serve_app.api.dialects.responses.previous_response import history_of, shown, unpacked
from serve_app.api.edge.connection import reply_json
from serve_app.api.edge.query import checked_query, integer
from serve_app.api.openapi.operation import Answer, Errors, Operation, Parameter
from serve_app.api.protocol.family import Family
from serve_app.api.protocol.fields import words
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import (
    InvalidField,
    NotKept,
    Overloaded,
    RouteNotFound,
    Unauthenticated,
    Unavailable,
    UnsupportedField,
)
from serve_app.limits import MAX_LISTED_ITEMS
from serve_app.types import Caller, Scope
from serve_app.types.control import KeptResponse

Query = Mapping[str, str]
Handle = Callable[[ResponseStore, Caller, str, Query], Awaitable[Mapping[str, object]]]

_IS_OFF: Final = (
    "no response is kept on this server, as if every request said store: false (setting responses.keep)"
)
_LIMIT: Final = 20
_ORDERS: Final = ("asc", "desc")
_PAGE: Final = (
    Parameter(
        name="limit",
        place="query",
        type=Annotated[int, Field(ge=1, le=MAX_LISTED_ITEMS)],
        what=f"How many items; default {_LIMIT}.",
    ),
    Parameter(
        name="order",
        place="query",
        type=Annotated[str, words(_ORDERS)],
        what="Oldest (asc) or newest first; default desc.",
    ),
    Parameter(name="after", place="query", what="The id of the item before the first one."),
)


def kept_routes(services: Services, base: str, family: Family, tag: str, errors: Errors) -> Iterator[Entry]:
    """The routes of one protocol below `base`."""

    def told(
        method: str, path: str, handle: Handle, summary: str, answer: Answer, *parameters: Parameter
    ) -> Entry:
        operation = Operation(
            summary=summary,
            tag=tag,
            what="Responses are kept for a time, and only the key that asked for one reaches it.",
            parameters=parameters,
            answers=(answer,),
            errors=errors,
            conditions=(RouteNotFound, NotKept, InvalidField, Unavailable, Overloaded),
            asks_model=False,
        )
        app = KeptRoute(services, handle)
        return Entry(method, f"{base}/responses/{{response}}{path}", app, Scope.INFERENCE, family, operation)

    response = Answer(what="The response.", type=Response)
    removed = Answer(what="It is removed.", type=RemovedResponse)
    items = Answer(
        what="Items that the model read, those of the responses before this one among them.", type=InputItems
    )
    yield told("GET", "", _retrieve, "A kept response", response)
    yield told("DELETE", "", _remove, "Remove a kept response", removed)
    yield told("GET", "/input_items", _list_input, "The input of a kept response", items, *_PAGE)


class KeptRoute:
    """An ASGI app for one method."""

    def __init__(self, services: Services, handle: Handle) -> None:
        self._services = services
        self._handle = handle

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises ServeError."""
        services, caller = self._services, context_of(scope).caller
        if services.responses is None:
            raise RouteNotFound(_IS_OFF)
        if caller is None:
            raise Unauthenticated("an API key is required")
        services.admission.check()
        query = checked_query(scope["query_string"])
        answer = await self._handle(services.responses, caller, scope["path_params"]["response"], query)
        await reply_json(send, answer)


async def _retrieve(store: ResponseStore, caller: Caller, id: str, query: Query) -> Response:
    """The response. Raises NotKept; raises UnsupportedField if the client asks for a stream."""
    if query.get("stream", "false").lower() != "false":
        raise UnsupportedField("stream", "a kept response is sent whole")
    found = _own(id, await store.recall((id,), "", caller))
    response: Response = unpacked(found.response)
    return response


async def _remove(store: ResponseStore, caller: Caller, id: str, query: Query) -> RemovedResponse:
    """Remove the response and its items. Raises NotKept."""
    if not await store.forget(id, caller):
        raise _missing(id)
    return {"id": id, "object": "response", "deleted": True}


async def _list_input(store: ResponseStore, caller: Caller, id: str, query: Query) -> InputItems:
    """A page of the response's input, including the items of all responses before it.

    Raises NotKept, or InvalidField for an invalid query.
    """
    limit = integer(query, "limit", 1, MAX_LISTED_ITEMS) or _LIMIT
    order, after = query.get("order", "desc"), query.get("after")
    if order not in _ORDERS:
        raise InvalidField("order", f"must be one of: {', '.join(_ORDERS)}")
    kept = await store.recall((), id, caller)
    output = unpacked(_own(id, kept).response)["output"]
    history = history_of(id, kept)
    items = history[: len(history) - len(output)]
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidField("after", "must be the id of an item of this list")
        items = items[ids.index(after) + 1 :]
    page = cast("list[ListedItem]", items[:limit])
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _own(id: str, found: Mapping[str, KeptResponse]) -> KeptResponse:
    if id not in found:
        raise _missing(id)
    return found[id]


def _missing(id: str) -> NotKept:
    return NotKept(None, f"Response with id {shown(id)} not found.")
