"""Lengths and counts of a schema as the parser reads them: whole numbers of 32 bits."""

from __future__ import annotations

from typing import Final

from serve_app.json_schema.vocabulary import Schema

_LEAST: Final = ("minLength", "minItems", "minProperties")
_MOST: Final = ("maxLength", "maxItems", "maxProperties")
_MAX: Final = 2**31  # no answer is so long


def rewrite_sizes(node: Schema) -> None:
    """Write `2.0` as `2`, and take out upper bounds that no answer reaches, such as an int64's."""
    for key in (*_LEAST, *_MOST):
        value = node.get(key)
        if isinstance(value, float) and value.is_integer():
            node[key] = value = int(value)
        if key in _MOST and isinstance(value, int) and value >= _MAX:
            del node[key]
