"""Types of wire fields: strict about types and ranges, with uniform error messages.

Every type accepts null as "absent" and stores None. An error message names the accepted range, never the
refused value. Each type has the JSON Schema of the values that it accepts, with the same bounds, for the
OpenAPI document. Independent of dialects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field, GetJsonSchemaHandler, PlainValidator, TypeAdapter, WithJsonSchema, with_config
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from typing_extensions import TypedDict

# What pydantic makes a schema of. Its own `Any` would accept everything and say nothing.
Shape: TypeAlias = Any

MAX_TOKEN_ID: Final = 2**31 - 1


def refusal(message: str) -> PydanticCustomError:
    """A validation error with our own message, in which braces have no special meaning."""
    return PydanticCustomError("field", "{message}", {"message": message})


def as_integer(value: Any) -> int | None:
    """`value` as an integer if it is one in JSON (3 and 3.0, but not true), else None."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    return None


class Mark(Enum):
    """The marks that a field's annotation may contain besides the type and the description."""

    UNANSWERED = auto()  # an answer does not look back at it; bodies live as long as their answers
    SELF_CHECKED = auto()  # its reader refuses numbers that are not finite


@dataclass(frozen=True, slots=True)
class Sets:
    """The request's field that this field sets, by its name in a replica's errors."""

    name: str


@dataclass(frozen=True, slots=True)
class Described:
    """Gives a field the schema of `shape`. Checks nothing, since the field's own parser checks it later."""

    shape: Shape

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(TypeAdapter(self.shape | None).core_schema)


@with_config(extra="allow")
class Open(TypedDict):
    """The base for shapes of objects that may have further members beside the listed ones."""


def words(listed: Iterable[str]) -> WithJsonSchema:
    """The schema of a string that is one of `listed`."""
    return WithJsonSchema({"type": "string", "enum": list(dict.fromkeys(listed))})


def checked(check: Callable[[Any], Any], shape: Shape) -> PlainValidator:
    """A type whose values are null and whatever `check` returns. `shape` is the type that `check` accepts."""
    return PlainValidator(
        lambda value: None if value is None else check(value), json_schema_input_type=shape | None
    )


def Integer(low: int, high: int) -> PlainValidator:
    """An integer from `low` to `high`."""

    def check(value: Any) -> int:
        number = as_integer(value)
        if number is None or not low <= number <= high:
            raise refusal(f"must be an integer from {low} to {high}")
        return number

    return checked(check, Annotated[int, Field(ge=low, le=high)])


def Number(low: float, high: float, *, above: bool = False) -> PlainValidator:
    """A finite number from `low` to `high`; `above`: greater than `low`."""
    told = (
        f"must be a number above {low:g} and up to {high:g}"
        if above
        else f"must be a number from {low:g} to {high:g}"
    )

    def check(value: Any) -> float:
        # Compared before the conversion: an integer may be too large for a float.
        if type(value) not in (int, float) or not low <= value <= high or (above and value == low):
            raise refusal(told)
        return float(value)

    bounds = Field(gt=low, le=high) if above else Field(ge=low, le=high)
    return checked(check, Annotated[float, bounds])


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise refusal("must be true or false")
    return value


Boolean = checked(_boolean, bool)
Flag: TypeAlias = Annotated[bool | None, Boolean]


def OneOf(listed: Iterable[str]) -> PlainValidator:
    """A string that is one of `listed`."""
    known = tuple(dict.fromkeys(listed))

    def check(value: Any) -> str:
        if type(value) is not str or value not in known:
            raise refusal(f"must be one of: {', '.join(known)}")
        return value

    return checked(check, Annotated[str, words(known)])


def Text(low: int, high: int) -> PlainValidator:
    """A string of `low` to `high` characters."""

    def check(value: Any) -> str:
        if type(value) is not str or not low <= len(value) <= high:
            raise refusal(f"must be a string of {low} to {high} characters")
        return value

    return checked(check, Annotated[str, Field(min_length=low, max_length=high)])


def Texts(count: int, chars: int, *, single: bool = False) -> PlainValidator:
    """Up to `count` strings of 1 to `chars` characters; `single`: one bare string is accepted, too."""
    one = "a string or " if single else ""
    told = f"must be {one}a list of up to {count} strings of 1 to {chars} characters"

    def check(value: Any) -> tuple[str, ...]:
        items = [value] if single and type(value) is str else value
        if type(items) is not list or len(items) > count:
            raise refusal(told)
        if not all(type(item) is str and 1 <= len(item) <= chars for item in items):
            raise refusal(told)
        return tuple(items)

    text = Annotated[str, Field(min_length=1, max_length=chars)]
    texts = Annotated[list[text], Field(max_length=count)]
    return checked(check, text | texts if single else texts)


def Integers(count: int, low: int, high: int) -> PlainValidator:
    """Up to `count` integers from `low` to `high`."""

    def check(value: Any) -> tuple[int, ...]:
        numbers = (
            [as_integer(item) for item in value] if type(value) is list and len(value) <= count else [None]
        )
        if not all(number is not None and low <= number <= high for number in numbers):
            raise refusal(f"must be a list of up to {count} integers from {low} to {high}")
        return tuple(number for number in numbers if number is not None)

    number = Annotated[int, Field(ge=low, le=high)]
    return checked(check, Annotated[list[number], Field(max_length=count)])


def Biases(count: int, high_id: int, bound: float) -> PlainValidator:
    """A map of up to `count` token ids, as decimal strings, to numbers from -`bound` to `bound`."""
    told = f"must map up to {count} token ids, as strings, to numbers from {-bound:g} to {bound:g}"

    def check(value: Any) -> tuple[tuple[int, float], ...]:
        if type(value) is not dict or len(value) > count:
            raise refusal(told)
        found: dict[int, float] = {}
        for key, bias in value.items():
            if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= high_id):
                raise refusal(told)
            if type(bias) not in (int, float) or not -bound <= bias <= bound or math.isnan(bias):
                raise refusal(told)
            found[int(key)] = float(bias)
        return tuple(found.items())

    token = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
    bias = Annotated[float, Field(ge=-bound, le=bound)]
    return checked(check, Annotated[dict[token, bias], Field(max_length=count)])
