"""Ranges of the numbers in a body: read from its schema, written as vendors document them; their edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

JUST_BEYOND: Final = 0.01
JUST_INSIDE: Final = 0.001


@dataclass(frozen=True, slots=True)
class Range:
    """What one field may be: a number of an interval, or a flag. `apart`: one more number that is allowed."""

    kind: str  # integer, number or boolean
    low: float = 0
    high: float | None = None  # None: no limit
    is_open: bool = False  # `low` itself is not allowed
    apart: int | None = None

    def __str__(self) -> str:
        """As mathematics writes it: `integer [1, 128]`, `number (0, 1]`, `integer -1 or [1, 5]`."""
        if self.kind == "boolean":
            return self.kind
        apart = "" if self.apart is None else f"{self.apart} or "
        end = "..." if self.high is None else f"{_plain(self.high)}]"
        return f"{self.kind} {apart}{'(' if self.is_open else '['}{_plain(self.low)}, {end}"

    @property
    def lowest(self) -> Any:
        if self.kind == "boolean":
            return False
        return self.low + JUST_INSIDE if self.is_open else self.low

    @property
    def whole(self) -> float | None:
        """An integer as a float, as some clients write it."""
        return float(max(self.low, 1)) if self.kind == "integer" else None

    @property
    def highest(self) -> Any:
        return True if self.kind == "boolean" else self.high

    def beyond(self) -> Iterator[Any]:
        """Values just outside, and values of other types."""
        if self.kind == "boolean":
            yield from (1, 0, "true")
            return
        step = 1 if self.kind == "integer" else JUST_BEYOND
        yield self.low if self.is_open else self.low - (step if self.apart is None else 1)
        if self.apart is not None:
            yield self.apart - 1
        if self.high is not None:
            yield from {self.high + step} - {self.high}  # none if floats have no other there
        yield from ("1", True)
        if self.kind == "integer":
            yield 1.5


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 2**64 else repr(number)


def ranges_of(schema: Mapping[str, Any]) -> dict[str, Range]:
    """The range of each field of a body that is one number or one flag."""
    found = {name: _range(each.get("anyOf", [each])) for name, each in schema["properties"].items()}
    return {name: each for name, each in found.items() if each is not None}


def _range(options: list[dict[str, Any]]) -> Range | None:
    """Of the alternatives of a field, `null` aside."""
    named = [each for each in options if each.get("type") != "null"]
    apart = [each["const"] for each in named if "const" in each]
    rest = [each for each in named if "const" not in each]
    if len(rest) != 1 or rest[0].get("type") not in ("integer", "number", "boolean"):
        return None
    (only,) = rest
    if only["type"] == "boolean":
        return None if apart else Range("boolean")
    is_open = "exclusiveMinimum" in only
    low = only["exclusiveMinimum" if is_open else "minimum"]
    return Range(only["type"], low, only.get("maximum"), is_open, *apart)
