"""The query of a URL."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from serve_app.errors import InvalidField
from serve_app.limits import MAX_QUERY_PARAMETERS


def checked_query(raw: bytes) -> Mapping[str, str]:
    """The parameters of a query by name; if a name is repeated, its last value. Raises InvalidField."""
    try:
        return dict(
            parse_qsl(
                raw.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=MAX_QUERY_PARAMETERS,
            )
        )
    except ValueError:  # UnicodeDecodeError is one
        raise InvalidField(
            None, f"the query must be UTF-8 with at most {MAX_QUERY_PARAMETERS} parameters"
        ) from None


def integer(query: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """The integer parameter `name`, from `low` to `high`; None: the query does not set it. Raises
    InvalidField."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high):
        raise InvalidField(name, f"must be an integer from {low} to {high}")
    return int(text)


def flag(query: Mapping[str, str], name: str) -> bool:
    """Whether the parameter `name` is true; it is false by default. Raises InvalidField."""
    word = query.get(name, "false")
    if word not in ("true", "false"):
        raise InvalidField(name, "must be true or false")
    return word == "true"
