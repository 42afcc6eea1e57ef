"""Forms as a browser sends them, from pairs of names and values."""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.console.forms import Form


def form_of(fields: Iterable[tuple[str, str]]) -> Form:
    """A name may be there several times, in this order."""
    found: dict[str, list[str]] = {}
    for name, value in fields:
        found.setdefault(name, []).append(value)
    return Form(found)
