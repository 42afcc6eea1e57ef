"""`minProperties` and `maxProperties` as choices of members."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any, Final

from serve_app.json_schema.vocabulary import Schema

MAX_CHOICES: Final = 32  # combinations of members that are written out
KEYWORDS: Final = ("minProperties", "maxProperties")


def rewrite_counts(node: Schema, *, alone: bool) -> tuple[list[str], list[Schema]]:
    """Remove from `node` the counts that the parser cannot check, namely counts beside optional members.

    `alone`: no other schema applies to the same objects. Returns the keywords that are no longer enforced,
    and schemas that enforce the others, to be combined with `node`.
    """
    low, high = node.get("minProperties"), node.get("maxProperties")
    if not all(isinstance(n, int | None) for n in (low, high)):
        return [], []  # the parser refuses the schema
    properties = node.get("properties", {})
    required = {name for name in node.get("required", ()) if isinstance(name, str)}
    if low is not None and low <= len(required):
        del node["minProperties"]
        low = None
    optional = [name for name, schema in properties.items() if name not in required and schema is not False]
    closed = alone and node.get("additionalProperties") is False and "patternProperties" not in node
    if closed and required <= properties.keys():
        return _written_out(node, optional, low, high, len(required))
    if alone and not optional:
        # The parser counts a repeated member twice, so an object may have fewer members than it counts.
        return (["minProperties"] if low is not None and low > len(required) + 1 else []), []
    return [key for key in KEYWORDS if node.pop(key, None) is not None], []


def _written_out(
    node: Schema, optional: list[str], low: int | None, high: int | None, fixed: int
) -> tuple[list[str], list[Schema]]:
    """Like `rewrite_counts`, for a closed object with `fixed` required members."""
    lost, more = [], []
    count = len(optional)
    if low is not None and 0 < low - fixed <= count:
        if comb(count, low - fixed) <= MAX_CHOICES:
            more.append(_any({"required": list(names)} for names in combinations(optional, low - fixed)))
        else:
            lost.append("minProperties")
        del node["minProperties"]
    if high is not None and high >= fixed:
        left_out = count - (high - fixed)
        if left_out > 0 and comb(count, left_out) <= MAX_CHOICES:
            more.append(
                _any({"properties": dict.fromkeys(n, False)} for n in combinations(optional, left_out))
            )
        elif left_out > 0:
            lost.append("maxProperties")
        del node["maxProperties"]
    return lost, more


def _any(options: Any) -> Schema:
    return {"anyOf": list(options)}
