"""Which numbers in a schema the parser enforces exactly.

The parser reads every number in a schema as a float, and reads long decimals inexactly: 2**53 + 1 becomes
2**53, and -122.33207309999999 becomes -122.3320731. It computes multiples with 32-bit integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from serve_app.json_schema.exact.documents import Definitions
from serve_app.json_schema.numerals import is_number, written
from serve_app.json_schema.vocabulary import Schema, subschemas
from serve_app.types import Numeral

BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MAX_PLAIN: Final = 2**53
_MAX_SHIFT: Final = 22  # the largest exponent of ten whose power is exact as a float
_MAX_FACTOR: Final = 2**32


def is_plain(value: float) -> bool:
    """Whether the parser reads the number exactly."""
    if isinstance(value, Numeral):
        return False
    if isinstance(value, int):
        return abs(value) < _MAX_PLAIN
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    if not isinstance(exponent, int):
        return True  # not a JSON number: refused elsewhere
    size = int("".join(map(str, digits)))
    return size < _MAX_PLAIN and abs(value) < _MAX_PLAIN and exponent >= -_MAX_SHIFT


def factor(value: float) -> tuple[int, int] | None:
    """`multipleOf` as the parser reads it: (a, b) for a / 10**b. None if the parser cannot read the value."""
    if not is_plain(value) or value <= 0:
        return None
    scaled, shift = float(value), 0
    while scaled % 1 and shift < _MAX_SHIFT:  # the parser's own way, in floats
        scaled, shift = scaled * 10, shift + 1
    exact = Fraction(Decimal(repr(value)))
    if scaled >= _MAX_FACTOR or Fraction(int(scaled), 10**shift) != exact:
        return None
    return int(scaled), shift


def can_count(value: float) -> bool:
    """Whether multiples of `value` can be enforced: by the parser, or as digits of a power of ten."""
    return factor(value) is not None or written(value).strip("0.") == "1"


class Inexact:
    """The schemas inside `root` that contain, or lead to, a number that the parser would change."""

    def __init__(self, root: Schema, definitions: Definitions) -> None:
        self._found: set[int] = set()
        schemas, users = _graph(root, definitions)
        self._known = set(map(id, schemas))
        factors = [each["multipleOf"] for each in schemas if is_number(each.get("multipleOf"))]
        self._many = not _countable(factors)
        pending = [id(schema) for schema in schemas if self.own(schema)]
        while pending:
            each = pending.pop()
            if each not in self._found:
                self._found.add(each)
                pending += users.get(each, ())

    def __bool__(self) -> bool:
        return bool(self._found)

    def __contains__(self, schema: Any) -> bool:
        """Whether `schema`, in or combined from `root`, contains or leads to a number that `own` finds."""
        if not isinstance(schema, dict) or id(schema) in self._known:
            return id(schema) in self._found
        return self.own(schema) or any(each in self for _, _, each in subschemas(schema))

    def own(self, schema: Schema) -> bool:
        """Whether `schema` itself contains a number that the parser would change."""
        return (
            any(is_number(schema.get(key)) and not is_plain(schema[key]) for key in BOUNDS)
            or any(not is_plain(number) for number in _data(schema))
            or (is_number(schema.get("multipleOf")) and (self._many or factor(schema["multipleOf"]) is None))
        )


def _graph(root: Schema, definitions: Definitions) -> tuple[list[Schema], dict[int, list[int]]]:
    """All schemas inside `root`, and, for the id of each schema, the ids of the schemas that use it."""
    seen: set[int] = set()
    schemas: list[Schema] = []
    users: dict[int, list[int]] = {}
    pending: list[Any] = [root]
    while pending:
        schema = pending.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        schemas.append(schema)
        below = [each for _, _, each in subschemas(schema)]
        if "$ref" in schema:
            below.append(definitions[schema["$ref"]])
        for each in below:
            users.setdefault(id(each), []).append(id(schema))
        pending += below
    return schemas, users


def _data(schema: Schema) -> Iterator[float]:
    """The numbers of a schema's `const` and `enum`."""
    pending = [schema[key] for key in ("const", "enum") if key in schema]
    while pending:
        item = pending.pop()
        if is_number(item):
            yield item
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def _countable(factors: list[float]) -> bool:
    """Whether the parser can compute the common multiples of any two of the `factors`."""
    found = {pair for value in factors if (pair := factor(value)) is not None}
    shift = max((b for _, b in found), default=0)
    largest = sorted(a * 10 ** (shift - b) for a, b in found)[-2:]
    return len(largest) < 2 or largest[0] * largest[1] < _MAX_FACTOR
