"""Types of the fields of management bodies, besides those that all protocols share."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator

from serve_app.api.protocol.fields import checked, refusal
from serve_app.limits import MAX_STORED_CHARS, MAX_STORED_TEXTS


def ListOf(low: int, high: int, what: str = "objects") -> BeforeValidator:
    """A list of `low` to `high` items. The annotated type checks the items afterwards."""

    def check(value: Any) -> Any:
        if value is not None and (type(value) is not list or not low <= len(value) <= high):
            raise refusal(f"must be a list of {low} to {high} {what}")
        return value

    return BeforeValidator(check)


def Matching(pattern: str, told: str) -> PlainValidator:
    """A string that fully matches `pattern`; `told` describes such a string in errors."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str:
        if type(value) is not str or not compiled.fullmatch(value):
            raise refusal(f"must be {told}")
        return value

    return checked(check, Annotated[str, Field(pattern=f"^{pattern}$")])


def _text_map(value: Any) -> dict[str, str]:
    if type(value) is not dict or len(value) > MAX_STORED_TEXTS:
        raise refusal(_MAP)
    if not all(
        type(each) is str and len(each) <= MAX_STORED_CHARS for item in value.items() for each in item
    ):
        raise refusal(_MAP)
    return value


_MAP = f"must map up to {MAX_STORED_TEXTS} names to strings of up to {MAX_STORED_CHARS} characters"
_Stored = Annotated[str, Field(max_length=MAX_STORED_CHARS)]

TextMap = checked(_text_map, Annotated[dict[_Stored, _Stored], Field(max_length=MAX_STORED_TEXTS)])
EndpointName = Matching(
    r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
    "1 to 63 characters of A-Z a-z 0-9 . _ - beginning and ending with a letter or digit",
)
EntityName = Matching(
    r"[A-Za-z0-9]([A-Za-z0-9._:/-]{0,254}[A-Za-z0-9])?",
    "1 to 256 characters of A-Z a-z 0-9 . _ : / - beginning and ending with a letter or digit",
)
ModelVersion = Matching(r"([1-9][0-9]{0,17})?", 'a whole number from 1 as a string, such as "2"')
