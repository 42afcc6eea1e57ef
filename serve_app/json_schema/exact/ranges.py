"""Regexes of the decimal numbers within bounds, digit by digit and so of any length.

Numbers are written without an exponent: `-12.50`. Each regex is linear in the digits of its bound.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

_WHOLE: Final = "(0|[1-9][0-9]*)"
_PART: Final = r"(\.[0-9]+)?"


def kind_of_number(*, integer: bool) -> str:
    """All integers, or all numbers."""
    return f"-?{_WHOLE}" + ("" if integer else _PART)


def at_least(bound: Decimal, *, inclusive: bool, integer: bool) -> str:
    """The numbers that are not less than `bound`, or that are greater."""
    if bound.is_signed() and bound:
        below = _up_to(bound.copy_abs(), inclusive, integer)
        return f"-({below})|{_WHOLE}" + ("" if integer else _PART)
    return _from(bound.copy_abs(), inclusive, integer)


def at_most(bound: Decimal, *, inclusive: bool, integer: bool) -> str:
    """The numbers that are not greater than `bound`, or that are less."""
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
    """`bound` is more than 0, or may be met."""
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
    """Whole numbers that are greater."""
    size = len(digits)
    same = [
        f"{digits[:i]}[{int(digit) + 1}-9][0-9]{{{size - i - 1}}}"
        for i, digit in enumerate(digits)
        if digit < "9"
    ]
    return [*same, f"[1-9][0-9]{{{size},}}"]


def _smaller(digits: str) -> list[str]:
    """Whole numbers, not negative, that are smaller."""
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
    """Digits after a point that are not less than `digits`, which do not end with a zero."""
    more = [f"{digits[:i]}[{int(digit) + 1}-9][0-9]*" for i, digit in enumerate(digits) if digit < "9"]
    return [*more, digits + ("[0-9]*" if inclusive else "[0-9]*[1-9][0-9]*")]


def _part_up_to(digits: str, inclusive: bool) -> list[str]:
    less = [f"{digits[:i]}[0-{int(digit) - 1}][0-9]*" for i, digit in enumerate(digits) if digit > "0"]
    shorter = [digits[:i] for i in range(1, len(digits))]
    return [*less, *shorter, *([f"{digits}0*"] if inclusive else [])]
