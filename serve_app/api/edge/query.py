"""The query of a URL."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from serve_app.errors import InvalidField
from serve_app.limits import MAX_QUERY_PARAMETERS


def checked_query(raw: bytes) -> Mapping[str, str]:
    """The parameters of a query by name, of several values of one name the last. Raises InvalidField."""
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
