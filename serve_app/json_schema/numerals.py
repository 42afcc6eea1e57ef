"""JSON whose numbers keep their exact written value: integers of any size, decimals of any length.

A float keeps about 16 digits. A number that a client wrote with more digits is a `Numeral`: a float in
computations, and its original text when a schema is written.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, Final

from serve_app.types import Numeral

MAX_DIGITS: Final = 400  # of a number that is written out; the smallest and longest double has 341
_MAX_EXPONENT_CHARS: Final = 8  # a number with a longer exponent overflows, or is nearly zero


def number(text: str) -> float:
    """The JSON decimal that `text` spells; it is a plain float if that is exactly the same number."""
    value = float(text)
    if not math.isfinite(value):
        return value
    exponent = text.lower().partition("e")[2]
    same = len(exponent) < _MAX_EXPONENT_CHARS and Decimal(text) == Decimal(repr(value))
    return value if same else Numeral(text)


def loads(text: str | bytes) -> Any:
    """Parse JSON, keeping numbers as they are written. Raises ValueError or RecursionError."""
    return json.loads(text, parse_float=number)


def dumps(value: Any) -> str:
    """Compact JSON with numbers as they were written. Raises ValueError for values outside JSON."""
    if not holds_numerals(value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if isinstance(value, Numeral):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumps(name)}:{dumps(each)}" for name, each in value.items()) + "}"
    return "[" + ",".join(map(dumps, value)) + "]"


def holds_numerals(value: Any) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Numeral):
            return True
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
    return False


def restore(value: Any, exact: Any) -> Any:
    """`value`, with each float replaced by the `Numeral` at its place in `exact`, which is the same JSON."""
    if isinstance(exact, Numeral) and isinstance(value, float):
        return exact
    if isinstance(exact, dict) and isinstance(value, dict):
        for name in value.keys() & exact.keys():
            value[name] = restore(value[name], exact[name])
    elif isinstance(exact, list) and isinstance(value, list) and len(value) == len(exact):
        value[:] = map(restore, value, exact)
    return value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def exact(value: float) -> Decimal:
    """The number that a client wrote. Raises ValueError for a number that is too long to write out."""
    text = written(value)
    exponent = text.lower().partition("e")[2]
    if len(text) > MAX_DIGITS or len(exponent) > _MAX_EXPONENT_CHARS or abs(int(exponent or 0)) > MAX_DIGITS:
        raise ValueError
    return Decimal(text)


def written(value: float) -> str:
    """The number as JSON."""
    return value.text if isinstance(value, Numeral) else repr(value)
