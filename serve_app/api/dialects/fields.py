"""Types of wire fields: strict about types and ranges, uniform in what they say.

Every type takes null for "absent" and keeps it as None. A message names the accepted
range and never the value it refused. Knows no dialect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError


def refusal(message: str) -> PydanticCustomError:
    """A validation error with our own words, in which braces have no meaning."""
    return PydanticCustomError("field", "{message}", {"message": message})


def as_integer(value: Any) -> int | None:
    """`value` as an integer if JSON means one (3 and 3.0, not true), else None."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    return None


def _optional(check: Callable[[Any], Any]) -> PlainValidator:
    return PlainValidator(lambda value: None if value is None else check(value))


def Integer(low: int, high: int) -> PlainValidator:
    """An integer from `low` to `high`."""

    def check(value: Any) -> int:
        number = as_integer(value)
        if number is None or not low <= number <= high:
            raise refusal(f"must be an integer from {low} to {high}")
        return number

    return _optional(check)


def Number(low: float, high: float, *, above: bool = False) -> PlainValidator:
    """A finite number from `low` to `high`; `above`: greater than `low`."""
    words = (
        f"must be a number above {low:g} and up to {high:g}"
        if above
        else f"must be a number from {low:g} to {high:g}"
    )

    def check(value: Any) -> float:
        # Compared before the conversion: an integer may be too large for a float.
        if type(value) not in (int, float) or not low <= value <= high or (above and value == low):
            raise refusal(words)
        return float(value)

    return _optional(check)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise refusal("must be true or false")
    return value


Boolean = _optional(_boolean)


def Text(low: int, high: int) -> PlainValidator:
    """A string of `low` to `high` characters."""

    def check(value: Any) -> str:
        if type(value) is not str or not low <= len(value) <= high:
            raise refusal(f"must be a string of {low} to {high} characters")
        return value

    return _optional(check)


def Texts(count: int, chars: int, *, single: bool = False) -> PlainValidator:
    """Up to `count` strings of 1 to `chars` characters; `single`: or one bare string."""
    one = "a string or " if single else ""
    words = f"must be {one}a list of up to {count} strings of 1 to {chars} characters"

    def check(value: Any) -> tuple[str, ...]:
        items = [value] if single and type(value) is str else value
        if type(items) is not list or len(items) > count:
            raise refusal(words)
        if not all(type(item) is str and 1 <= len(item) <= chars for item in items):
            raise refusal(words)
        return tuple(items)

    return _optional(check)


def Integers(count: int, low: int, high: int) -> PlainValidator:
    """Up to `count` integers from `low` to `high`."""

    def check(value: Any) -> tuple[int, ...]:
        numbers = (
            [as_integer(item) for item in value] if type(value) is list and len(value) <= count else [None]
        )
        if not all(number is not None and low <= number <= high for number in numbers):
            raise refusal(f"must be a list of up to {count} integers from {low} to {high}")
        return tuple(number for number in numbers if number is not None)

    return _optional(check)


def Biases(count: int, high_id: int, bound: float) -> PlainValidator:
    """A map of up to `count` token ids, as decimal strings, to numbers of at most `bound` in size."""
    words = f"must map up to {count} token ids, as strings, to numbers from {-bound:g} to {bound:g}"

    def check(value: Any) -> tuple[tuple[int, float], ...]:
        if type(value) is not dict or len(value) > count:
            raise refusal(words)
        found: dict[int, float] = {}
        for key, bias in value.items():
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= high_id):
                raise refusal(words)
            if type(bias) not in (int, float) or not -bound <= bias <= bound or math.isnan(bias):
                raise refusal(words)
            found[int(key)] = float(bias)
        return tuple(found.items())

    return _optional(check)
