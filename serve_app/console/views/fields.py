"""Texts of a form's fields as values for a JSON body.

A text that is not a number stays text, so that the API refuses it in its own words. Knows no page.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import Any, Final

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
    """The names in a text that has commas or lines between them; one with a comma is in double quotes."""
    lines = text.splitlines()
    try:
        parts = [part for row in csv.reader(lines, skipinitialspace=True) for part in row]
    except csv.Error:  # a field that is too long for the library, and for the API
        parts = lines
    return [word for part in parts if (word := part.strip())]


def listed(names: Iterable[str]) -> str:
    """Names as a form shows them, in the form that `words` reads."""
    return ", ".join('"' + name.replace('"', '""') + '"' if _QUOTED.search(name) else name for name in names)
