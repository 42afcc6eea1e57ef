"""Bounds of fields, written as tables, for tests that have each field's name in their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

# field -> (values at the edge of what is accepted, values just beyond it). A value may be a
# `pytest.param` with marks.
Bounds = Mapping[str, tuple[list[Any], list[Any]]]


def accepted(bounds: Bounds) -> list[Any]:
    """Parameters `field, value` inside of the bounds."""
    return [_param(field, value) for field, (inside, _) in bounds.items() for value in inside]


def refused(bounds: Bounds) -> list[Any]:
    """Parameters `field, value` outside of them."""
    return [_param(field, value) for field, (_, beyond) in bounds.items() for value in beyond]


def by_name(table: Mapping[str, Any]) -> list[Any]:
    """Parameters of a table of fields, each with what the table holds for it."""
    return [pytest.param(field, *values, id=field) for field, values in table.items()]


def _param(field: str, value: Any) -> Any:
    marked = value if hasattr(value, "marks") else pytest.param(value)
    return pytest.param(field, *marked.values, marks=marked.marks, id=f"{field}={marked.values[0]!r}"[:60])
