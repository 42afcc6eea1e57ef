"""Failures that the console detects itself, and the field that a refusal is about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FIELD: Final = re.compile(r"(?:config\.)?([a-z_]+(?:\.[a-z_]+|\.[0-9]+)*): ")


@dataclass(frozen=True, slots=True)
class Problem(Exception):
    """A failure that is found without calling the API. Templates show it like an API error."""

    message: str
    field: str | None = None  # of a form
    status: int = 400


def field_in(message: str) -> str | None:
    """The field named at the start of a management API error, as forms call it; None if there is none."""
    found = _FIELD.match(message)
    return None if found is None else found[1]


def is_wrong(field: str, refused: str | None) -> bool:
    """Whether the field `refused` is `field` itself, a part of it, or an object that contains it."""
    return refused is not None and (
        field == refused or field.startswith(f"{refused}.") or refused.startswith(f"{field}.")
    )
