"""Finds the place of an error in a schema: the parser says what is wrong, but not where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from serve_app.json_schema.adapting import Adapted
from serve_app.json_schema.vocabulary import DEFINITIONS, Path, Schema, subschemas

_IMPOSSIBLE: Final = "Unsatisfiable"  # the beginning of the parser's error if no value matches


def narrowed(adapted: Adapted, refusal: Callable[[Schema], str | None]) -> tuple[Path, str] | None:
    """The innermost schema that the parser refuses: its place in the client's schema, and the reason.

    `refusal` returns why the parser refuses an adapted schema, or None if it accepts it or runs out of time.
    """
    definitions = {"$defs": adapted.schema.get("$defs", {})}
    followed: set[str] = set()

    def inside(part: Schema, path: Path, reason: str) -> Iterator[tuple[Path, Schema]]:
        for keyword, key, child in subschemas(part):
            if keyword in DEFINITIONS or not isinstance(child, dict):
                continue
            if not reason.startswith(_IMPOSSIBLE) or _must_match(part, keyword, key):
                yield ((*path, keyword) if key is None else (*path, keyword, str(key))), child
        pointer = str(part.get("$ref"))
        if pointer in adapted.places and pointer not in followed:
            followed.add(pointer)
            yield adapted.places[pointer], definitions["$defs"].get(pointer.rpartition("/")[2], {})

    found: tuple[Path, str] | None = None
    candidates: Iterator[tuple[Path, Schema]] = iter([((), adapted.schema)])
    while True:
        for path, part in candidates:
            reason = refusal({**part, **definitions})
            if reason is not None:
                found = path, reason
                candidates = inside(part, path, reason)
                break
        else:
            return found


def _must_match(schema: Schema, keyword: str, key: Any) -> bool:
    """Whether every value of `schema` has a part that must match the subschema."""
    if keyword == "properties":
        return key in schema.get("required", ())
    return keyword == "allOf" or (keyword in ("items", "prefixItems") and bool(schema.get("minItems")))
