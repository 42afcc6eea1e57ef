"""Forms of pages, as a browser sends them: URL-encoded, bounded, with one or several values for each name.

A text that is not a number stays text in a JSON body, so that the API refuses it in its own words.
"""

from __future__ import annotations

import asyncio
import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request

from serve_app.errors import BodyTooLarge, InvalidBody, ReadTimeout

MAX_FORM_BYTES: Final = 1 << 20
MAX_FIELDS: Final = 1000
READ_S: Final = 30.0


class Form:
    """The fields of one form. A field that was not sent counts as empty."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """The first value, without space around it."""
        return next(iter(self._fields.get(name, ())), "").strip()

    def all(self, name: str) -> list[str]:
        """All values of a repeated field, such as ticked boxes or the rows of a table."""
        return [value.strip() for value in self._fields.get(name, ())]

    def __contains__(self, name: str) -> bool:
        return name in self._fields


async def read_form(request: Request) -> Form:
    """Raises BodyTooLarge, ReadTimeout or InvalidBody."""
    body = bytearray()
    try:
        async with asyncio.timeout(READ_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_FORM_BYTES:
                    raise BodyTooLarge(f"a form may have at most {MAX_FORM_BYTES} bytes")
    except TimeoutError:
        raise ReadTimeout("the form did not arrive in time") from None
    except ClientDisconnect:
        raise InvalidBody("the form did not arrive whole") from None
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise InvalidBody("the form is not URL-encoded text, or has too many fields") from None
    return Form(fields)


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})")
_QUOTED: Final = re.compile(r'[,"\r\n]')


def number(text: str) -> Any:
    """`text` as an int or a float; `text` itself if it is not a number; None if it is empty."""
    if not text:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def words(text: str) -> list[str]:
    """The names in a text, separated by commas or line breaks; a name with a comma is in double quotes."""
    lines = text.splitlines()
    try:
        parts = [part for row in csv.reader(lines, skipinitialspace=True) for part in row]
    except csv.Error:  # a field that is too long for the library, and for the API
        parts = lines
    return [word for part in parts if (word := part.strip())]


def listed(names: Iterable[str]) -> str:
    """Names as a form shows them, in the format that `words` reads."""
    return ", ".join('"' + name.replace('"', '""') + '"' if _QUOTED.search(name) else name for name in names)
