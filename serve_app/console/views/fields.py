"""Texts of a form's fields as values for a JSON body.

What is no number stays the text that it is, so that the API refuses it in its own words. Knows no page.
"""

from __future__ import annotations

import re
from typing import Any, Final

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})")
_BETWEEN_NAMES: Final = re.compile(r"[,\r\n]")


def number(text: str) -> Any:
    """`text` as an int or a float; `text` itself where it is none; None where it is empty."""
    if not text:
        return None
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def words(text: str) -> list[str]:
    """The names in a text that has commas or lines between them."""
    return [word for part in _BETWEEN_NAMES.split(text) if (word := part.strip())]
