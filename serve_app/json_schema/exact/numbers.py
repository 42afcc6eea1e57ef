"""The numbers that several schemas all allow: either listed, or given by bounds and multiples."""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any, Final

from serve_app.json_schema.exact.alternatives import Parts, is_integer, listed_numbers
from serve_app.json_schema.exact.plain import factor, is_plain
from serve_app.json_schema.numerals import exact, is_number, written
from serve_app.json_schema.vocabulary import Schema, UnusableSchema

# Regexes of the decimal numbers within bounds, without an exponent, digit by digit and so of any length.
# Each is linear in the digits of its bound.
_WHOLE: Final = "(0|[1-9][0-9]*)"
_PART: Final = r"(\.[0-9]+)?"


def kind_of_number(*, integer: bool) -> str:
    """All integers, or all numbers."""
    return f"-?{_WHOLE}" + ("" if integer else _PART)


def at_least(bound: Decimal, *, inclusive: bool, integer: bool) -> str:
    """The numbers that are at least `bound`, or strictly greater than `bound`."""
    if bound.is_signed() and bound:
        below = _up_to(bound.copy_abs(), inclusive, integer)
        return f"-({below})|{_WHOLE}" + ("" if integer else _PART)
    return _from(bound.copy_abs(), inclusive, integer)


def at_most(bound: Decimal, *, inclusive: bool, integer: bool) -> str:
    """The numbers that are at most `bound`, or strictly less than `bound`."""
    if bound.is_signed() or (not bound and not inclusive):
        return f"-({_from(bound.copy_abs(), inclusive, integer)})" + ("|0" if not bound and inclusive else "")
    return f"-{_WHOLE}" + ("" if integer else _PART) + f"|{_up_to(bound, inclusive, integer)}"


def multiple_of_power(exponent: int) -> str:
    """The multiples of 10 to the `exponent`."""
    if exponent > 0:
        return rf"-?(0|[1-9][0-9]*0{{{exponent}}})(\.0+)?"
    return rf"-?{_WHOLE}(\.[0-9]{{0,{-exponent}}}0*)?" if exponent else rf"-?{_WHOLE}(\.0+)?"


def _split(bound: Decimal) -> tuple[str, str]:
    """The digits before and after the point, without zeros at the end."""
    whole, _, part = format(bound, "f").partition(".")
    return whole, part.rstrip("0")


def _from(bound: Decimal, inclusive: bool, integer: bool) -> str:
    whole, part = _split(bound)
    tail = "" if integer else _PART
    found = [f"({'|'.join(_greater(whole))}){tail}"]
    if integer:
        found += [whole] if inclusive and not part else []
    elif part:
        found.append(rf"{whole}\.({'|'.join(_part_from(part, inclusive))})")
    else:
        found.append(whole + (_PART if inclusive else r"\.[0-9]*[1-9][0-9]*"))
    return "|".join(found)


def _up_to(bound: Decimal, inclusive: bool, integer: bool) -> str:
    """Expects a `bound` that is greater than 0, or that is itself allowed."""
    whole, part = _split(bound)
    tail = "" if integer else _PART
    smaller = _smaller(whole)
    found = [f"({'|'.join(smaller)}){tail}"] if smaller else []
    if integer:
        found += [whole] if inclusive or part else []
    elif part:
        found.append(rf"{whole}(\.({'|'.join(_part_up_to(part, inclusive))}))?")
    elif inclusive:
        found.append(rf"{whole}(\.0+)?")
    return "|".join(found)


def _greater(digits: str) -> list[str]:
    """Whole numbers that are greater than `digits`."""
    size = len(digits)
    same = [
        f"{digits[:i]}[{int(digit) + 1}-9][0-9]{{{size - i - 1}}}"
        for i, digit in enumerate(digits)
        if digit < "9"
    ]
    return [*same, f"[1-9][0-9]{{{size},}}"]


def _smaller(digits: str) -> list[str]:
    """Non-negative whole numbers that are smaller than `digits`."""
    if digits == "0":
        return []
    size = len(digits)
    same = [
        f"{digits[:i]}[{least}-{int(digit) - 1}][0-9]{{{size - i - 1}}}"
        for i, digit in enumerate(digits)
        if digit > (least := "0" if i else "1")
    ]
    return ["0", *([f"[1-9][0-9]{{0,{size - 2}}}"] if size > 1 else []), *same]


def _part_from(digits: str, inclusive: bool) -> list[str]:
    """Digits after the point that are not less than `digits`; `digits` does not end with a zero."""
    more = [f"{digits[:i]}[{int(digit) + 1}-9][0-9]*" for i, digit in enumerate(digits) if digit < "9"]
    return [*more, digits + ("[0-9]*" if inclusive else "[0-9]*[1-9][0-9]*")]


def _part_up_to(digits: str, inclusive: bool) -> list[str]:
    less = [f"{digits[:i]}[0-{int(digit) - 1}][0-9]*" for i, digit in enumerate(digits) if digit > "0"]
    shorter = [digits[:i] for i in range(1, len(digits))]
    return [*less, *shorter, *([f"{digits}0*"] if inclusive else [])]


_LOWER: Final = (("minimum", True), ("exclusiveMinimum", False))
_UPPER: Final = (("maximum", True), ("exclusiveMaximum", False))


class Numbers:
    """The numbers that all of `parts` allow; `at` is their place.

    Raises UnusableSchema, or ValueError for a number that is too long to write out.
    """

    def __init__(self, parts: Parts, at: str) -> None:
        self._at = at
        self._integer = is_integer(parts)
        self._listed = listed_numbers(parts)
        lower = [(exact(v), is_in, v) for v, is_in in _bounds(parts, _LOWER, at)]
        upper = [(exact(v), is_in, v) for v, is_in in _bounds(parts, _UPPER, at)]
        self._low = max(lower, key=lambda each: (each[0], not each[1]), default=None)
        self._high = min(upper, key=lambda each: (each[0], each[1]), default=None)
        self._factor: Fraction | None = None
        for part in parts:
            if "multipleOf" in part:
                self._take_factor(part["multipleOf"])

    def plain(self) -> Schema | None:
        """A schema for these numbers that the parser can enforce as it stands, if there is one."""
        bounds = [each for each in (self._low, self._high) if each is not None]
        if self._listed is not None or not all(is_plain(value) for _, _, value in bounds):
            return None
        schema: Schema = {"type": "integer" if self._integer else "number"}
        for found, (inclusive, exclusive) in ((self._low, _LOWER), (self._high, _UPPER)):
            if found is not None:
                schema[(inclusive if found[1] else exclusive)[0]] = found[2]
        if self._factor is not None:
            common: float = int(self._factor) if self._factor.denominator == 1 else float(self._factor)
            counted = factor(common)
            if counted is None or Fraction(counted[0], 10 ** counted[1]) != self._factor:
                return None
            schema["multipleOf"] = common
        return schema

    def terminal(self) -> str | None:
        """The terminal for these numbers, in Lark's notation; None if there are none."""
        if self._listed is not None:
            texts = [written(value) for value in self._listed if self._allows(exact(value))]
            return " | ".join(map(json.dumps, texts)) or None
        low, high = self._ends()
        if (
            low is not None
            and high is not None
            and (low[0] > high[0] or (low[0] == high[0] and not (low[1] and high[1])))
        ):
            return None
        regexes = [kind_of_number(integer=self._integer)]
        if low is not None:
            regexes.append(at_least(low[0], inclusive=low[1], integer=self._integer))
        if high is not None:
            regexes.append(at_most(high[0], inclusive=high[1], integer=self._integer))
        if self._factor is not None:
            regexes.append(multiple_of_power(self._power()))
        return " & ".join(f"/{regex}/" for regex in regexes)

    def _ends(self) -> list[tuple[Decimal, bool] | None]:
        """Both bounds; if the numbers are integers, so are the bounds."""
        ends: list[tuple[Decimal, bool] | None] = []
        for found, step in ((self._low, 1), (self._high, -1)):
            if found is None or not self._integer:
                ends.append(found and found[:2])
                continue
            value = int(found[0].to_integral_value(ROUND_CEILING if step > 0 else ROUND_FLOOR))
            ends.append((Decimal(value + step * (not found[1] and value == found[0])), True))
        return ends

    def _allows(self, value: Decimal) -> bool:
        low, high = self._low, self._high
        return (
            (low is None or value > low[0] or (value == low[0] and low[1]))
            and (high is None or value < high[0] or (value == high[0] and high[1]))
            and (not self._integer or value == value.to_integral_value())
            and (self._factor is None or Fraction(value) % self._factor == 0)
        )

    def _take_factor(self, value: Any) -> None:
        if not is_number(value) or value <= 0:
            raise UnusableSchema(f"{self._at}.multipleOf must be a number above 0")
        new = Fraction(exact(value))
        if self._factor is not None:
            new = Fraction(
                math.lcm(new.numerator, self._factor.numerator),
                math.gcd(new.denominator, self._factor.denominator),
            )
        self._factor = new

    def _power(self) -> int:
        """The exponent of ten, if `multipleOf` is a power of ten."""
        common = self._factor or Fraction(1)
        over, under = str(common.numerator), str(common.denominator)
        if {over.rstrip("0"), under.rstrip("0")} == {"1"} and "1" in (over, under):
            return len(over) - len(under)
        raise UnusableSchema(
            f"{self._at}.multipleOf cannot be enforced here: numbers of more than 15 digits "
            "are multiples of powers of ten alone"
        )


def _bounds(parts: Parts, keywords: tuple[tuple[str, bool], ...], at: str) -> list[tuple[Any, bool]]:
    """(value, whether the value itself is allowed) for every bound of this kind."""
    found = [(part[key], inclusive, key) for part in parts for key, inclusive in keywords if key in part]
    for value, _, key in found:
        if not is_number(value):
            raise UnusableSchema(f"{at}.{key} must be a number")
    return [(value, inclusive) for value, inclusive, _ in found]
