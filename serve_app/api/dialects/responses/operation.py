"""The routes of responses as the OpenAPI document describes them, and what those of kept ones do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from serve_app.api.backend import ResponseStore
from serve_app.api.dialects.chat import examples
from serve_app.api.dialects.responses.answers import InputItems, RemovedResponse, Response
from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.dialects.responses.events import Event
from serve_app.api.dialects.responses.read import DEFAULT_LIMIT, ORDERS, list_input, remove, retrieve
from serve_app.api.openapi.operation import ASKS_MODEL, EVENTS, Answer, Body, Errors, Operation, Parameter
from serve_app.api.protocol.fields import words
from serve_app.errors import InvalidField, NotKept, Overloaded, RouteNotFound, Unavailable
from serve_app.limits import MAX_LISTED_ITEMS
from serve_app.types import Caller

Handle = Callable[[ResponseStore, Caller, str, Mapping[str, str]], Awaitable[dict[str, Any]]]


def response_operation(tag: str, errors: Errors) -> Operation:
    """Responses as OpenAI has them, below a protocol's tag and with its errors."""
    return Operation(
        summary="Responses",
        tag=tag,
        what=(
            "Items in, items out: what was said, thought, called and answered. A response is kept for its "
            "key, unless `store` is false: `previous_response_id` goes on from it, and an `item_reference` "
            "stands for an item of it. Unknown fields are ignored, and named in `X-Ignored-Fields`."
        ),
        bodies=(Body(type=ResponseBody, examples=examples.RESPONSE),),
        answers=(
            Answer(what="The whole response.", type=Response),
            Answer(what="With `stream`: the events by which it grows.", type=Event, media=EVENTS),
        ),
        errors=errors,
        conditions=ASKS_MODEL,
    )


_KEPT: Final = (RouteNotFound, NotKept, InvalidField, Unavailable, Overloaded)
_PAGE: Final = (
    Parameter(
        name="limit",
        place="query",
        type=Annotated[int, Field(ge=1, le=MAX_LISTED_ITEMS)],
        what=f"How many items; default {DEFAULT_LIMIT}.",
    ),
    Parameter(
        name="order",
        place="query",
        type=Annotated[str, words(ORDERS)],
        what="Oldest (asc) or newest first; default desc.",
    ),
    Parameter(name="after", place="query", what="The id of the item before the first one."),
)


class KeptRouteTold(NamedTuple):
    """A route about one kept response: its method, its path below that of responses, and what it does."""

    method: str
    path: str
    handle: Handle
    operation: Operation


def kept_routes(tag: str, errors: Errors) -> tuple[KeptRouteTold, ...]:
    """The routes about one kept response, below a protocol's tag and with its errors."""

    def told(
        method: str, path: str, handle: Handle, summary: str, answer: Answer, *parameters: Parameter
    ) -> KeptRouteTold:
        operation = Operation(
            summary=summary,
            tag=tag,
            what="Responses are kept for a time, and only the key that asked for one reaches it.",
            parameters=parameters,
            answers=(answer,),
            errors=errors,
            conditions=_KEPT,
            asks_model=False,
        )
        return KeptRouteTold(method, path, handle, operation)

    response = Answer(what="The response.", type=Response)
    removed = Answer(what="It is removed.", type=RemovedResponse)
    items = Answer(
        what="Items that the model read, those of the responses before this one among them.", type=InputItems
    )
    return (
        told("GET", "/{response}", retrieve, "A kept response", response),
        told("DELETE", "/{response}", remove, "Remove a kept response", removed),
        told("GET", "/{response}/input_items", list_input, "The input of a kept response", items, *_PAGE),
    )
