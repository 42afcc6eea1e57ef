"""Kept responses by their ids: read, listed and removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.api.backend import ResponseStore
from serve_app.api.dialects.responses.kept import history_of, shown, unpacked
from serve_app.errors import InvalidField, NotKept, UnsupportedField
from serve_app.limits import MAX_LISTED_ITEMS
from serve_app.types import Caller
from serve_app.types.control import KeptResponse

DEFAULT_LIMIT: Final = 20
ORDERS: Final = ("asc", "desc")

Query = Mapping[str, str]


async def retrieve(store: ResponseStore, caller: Caller, id: str, query: Query) -> dict[str, Any]:
    """The response. Raises NotKept, or UnsupportedField where it is to be streamed."""
    if query.get("stream", "false").lower() != "false":
        raise UnsupportedField("stream", "a kept response is sent whole")
    found = _own(id, await store.recall((id,), "", caller))
    response: dict[str, Any] = unpacked(found.response)
    return response


async def remove(store: ResponseStore, caller: Caller, id: str, query: Query) -> dict[str, Any]:
    """Remove the response and its items. Raises NotKept."""
    if not await store.forget(id, caller):
        raise _missing(id)
    return {"id": id, "object": "response", "deleted": True}


async def list_input(store: ResponseStore, caller: Caller, id: str, query: Query) -> dict[str, Any]:
    """A page of the items that the response was made of, those that it went on from among them.

    Raises NotKept, or InvalidField for the query.
    """
    limit, order, after = _limit(query), query.get("order", "desc"), query.get("after")
    if order not in ORDERS:
        raise InvalidField("order", f"must be one of: {', '.join(ORDERS)}")
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
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _limit(query: Query) -> int:
    text = query.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_LISTED_ITEMS):
        raise InvalidField("limit", f"must be an integer from 1 to {MAX_LISTED_ITEMS}")
    return int(text)


def _own(id: str, found: Mapping[str, KeptResponse]) -> KeptResponse:
    if id not in found:
        raise _missing(id)
    return found[id]


def _missing(id: str) -> NotKept:
    return NotKept(None, f"Response with id {shown(id)} not found.")
