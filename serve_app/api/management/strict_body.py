"""Bodies of the management API: unknown fields are refused, at every depth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, TypeVar

from serve_app.api.edge.body import WireModel, parse_body
from serve_app.errors import InvalidBody

MAX_UNKNOWN_NAME_CHARS: Final = 64  # of a field's name in a message


class StrictBody(WireModel):
    """A wire model whose unknown fields are an error, unless they are null."""


class NoBody(StrictBody):
    """The body of a route that takes no body."""


StrictT = TypeVar("StrictT", bound=StrictBody)


def parse_strict(model: type[StrictT], raw: bytes) -> StrictT:
    """`raw` as a `model`. Raises InvalidBody or InvalidField."""
    body = parse_body(model, raw)
    for name in _unknown(body):
        shown = json.dumps(name[:MAX_UNKNOWN_NAME_CHARS], ensure_ascii=False)
        raise InvalidBody(f"json: unknown field {shown}")
    return body


def _unknown(value: object) -> Iterator[str]:
    """The names of unknown fields, including those of nested models."""
    if isinstance(value, StrictBody):
        yield from value.extra
        for each in value.__dict__.values():
            yield from _unknown(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _unknown(each)
