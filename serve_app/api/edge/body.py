"""From a socket to a checked wire model: capped reading, then strict JSON.

Covered: size (declared and real), slow senders, encodings, nesting, NaN and overflow in any value,
lone surrogates, byte-order marks and UTF-16. An error never repeats the input. Of duplicate keys
the last one wins, as everywhere in Python. Not covered: what fields mean, which dialects know.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, ClassVar, Final, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import Receive, Scope

from serve_app.api.context import header
from serve_app.api.protocol.field_doc import FieldDoc
from serve_app.errors import BodyTooLarge, InvalidBody, InvalidField, ReadTimeout
from serve_app.json_schema.numerals import loads, restore
from serve_app.limits import (
    BODY_READ_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_BODY_READ_S,
    MAX_JSON_CONTAINERS,
    MAX_JSON_DEPTH,
)


class ClientGone(Exception):
    """The client closed the connection, so nobody waits for an answer."""


class WireModel(BaseModel):
    """The base of all wire models. Unknown fields are kept apart: they are listed, and not used."""

    free_form: ClassVar[tuple[str, ...]] = ()  # fields in which unchecked values may hide
    may_be_infinite: ClassVar[tuple[str, ...]] = ()  # unknown fields whose numbers the dialect checks

    # For the OpenAPI document and the tables of fields. A subclass adds to what its bases say.
    fields_required: ClassVar[tuple[str, ...]] = ()
    fields_told: ClassVar[Mapping[str, FieldDoc]] = {}  # keyed by the name of a field, or by a path into one
    fields_beside: ClassVar[Mapping[str, Any]] = {}  # unknown fields that the dialect reads -> their types

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    @classmethod
    def about(cls) -> dict[str, FieldDoc]:
        """What each field does, in words."""
        return {name: told for base in reversed(cls.__mro__) for name, told in _own(base, "fields_told")}

    @classmethod
    def beside(cls) -> dict[str, Any]:
        """The fields that are read but are no attributes, each with the type of its values."""
        return {name: shape for base in reversed(cls.__mro__) for name, shape in _own(base, "fields_beside")}

    def without(self, *names: str) -> Self:
        """A copy without the fields `names` and without unknown ones. It may live as long as an answer."""
        kept = {name: value for name, value in self.__dict__.items() if name not in names}
        return cast(Self, type(self).model_construct(**kept))


def _own(base: type, name: str) -> Iterable[tuple[str, Any]]:
    """The entries of the mapping `name` that the class itself defines, without those of its bases."""
    found: Mapping[str, Any] = vars(base).get(name, {})
    return found.items()


Wire = TypeVar("Wire", bound=WireModel)


JSON_TYPE: Final = "application/json"
# The types that a body of JSON may have. curl says "form" of what `-d` sends.
_BODY_TYPES: Final = frozenset({"", JSON_TYPE, "application/x-www-form-urlencoded"})


async def read_body(
    scope: Scope,
    receive: Receive,
    take: Callable[[int], None] = lambda count: None,
    *,
    max_bytes: int = MAX_BODY_BYTES,
    idle_s: float = BODY_READ_TIMEOUT_S,
    total_s: float = MAX_BODY_READ_S,
) -> bytes:
    """The body of a JSON request. Raises InvalidBody, BodyTooLarge, ReadTimeout or ClientGone.

    `take` is called with the size of every piece that arrives. It raises to refuse the piece.
    """
    _check_headers(scope, max_bytes)
    loop = asyncio.get_running_loop()
    end = loop.time() + total_s
    body = bytearray()
    more = True
    try:
        while more:
            async with asyncio.timeout_at(min(end, loop.time() + idle_s)):
                message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            if len(body) + len(piece) > max_bytes:
                raise BodyTooLarge(f"the body must not exceed {max_bytes} bytes")
            take(len(piece))
            body += piece
            more = message.get("more_body", False)
    except TimeoutError:
        raise ReadTimeout("the body did not arrive in time") from None
    return bytes(body)


def _check_headers(scope: Scope, max_bytes: int) -> None:
    encoding = header(scope, b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise InvalidBody("Content-Encoding must be identity: send the body uncompressed")
    check_type(header(scope, b"content-type"))
    length = header(scope, b"content-length")
    if length is None:
        return
    if not (length.isascii() and length.isdigit()):
        raise InvalidBody("Content-Length must be a number")
    # Checked before int(), because a header may hold more digits than Python converts.
    if len(length.lstrip("0")) > 12 or int(length) > max_bytes:
        raise BodyTooLarge(f"the body must not exceed {max_bytes} bytes")


def check_type(content_type: str | None) -> None:
    """Raises InvalidBody for a Content-Type that is not one of JSON."""
    if (content_type or "").partition(";")[0].strip().lower() not in _BODY_TYPES:
        raise InvalidBody(f"Content-Type must be {JSON_TYPE}")


def parse_body(model: type[Wire], raw: bytes) -> Wire:
    """`raw` as a `model`. Raises InvalidBody (not JSON, not an object) or InvalidField."""
    check_encoding(raw)
    _check_structure(raw)
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        # `input` is left out on purpose: an error must not repeat the body, nor grow with its size.
        raise _public(
            error.errors(include_url=False, include_input=False, include_context=False)[0]
        ) from None
    if _may_hold_long_numbers(raw):
        _restore(body, loads(raw))
    extra = {
        name: value
        for name, value in (body.__pydantic_extra__ or {}).items()
        if name not in body.may_be_infinite
    }
    check_finite([extra, *(getattr(body, name) for name in body.free_form)])
    return body


# Of UTF-8 and UTF-16; the mark of UTF-32 begins with the latter, or with two zeros.
_BYTE_ORDER_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def check_encoding(raw: bytes) -> None:
    """Refuse a text that says how it is encoded, which JSON does not. Raises InvalidBody."""
    if raw.startswith(_BYTE_ORDER_MARKS):
        raise InvalidBody("the body begins with a byte order mark (BOM); send JSON in UTF-8 without one")


def _public(error: Any) -> InvalidBody | InvalidField:
    if error["type"] == "json_invalid":
        return InvalidBody("the body is not valid JSON (UTF-8, no NaN, no lone surrogates, limited nesting)")
    if not error["loc"]:
        return InvalidBody("the body must be a JSON object")
    field, path = str(error["loc"][0]), ".".join(map(str, error["loc"]))
    return InvalidField(field, f"{path}: {_REASONS.get(error['type'], error['msg'])}", joint=None)


# Our words for errors of pydantic itself. The types of fields have words of their own.
_REASONS: Final = {
    "missing": "is required",
    "model_type": "must be an object",
    "dict_type": "must be an object",
}


# Numbers matter to their last digit in schemas alone, and a float may hold less than these.
_KEYWORDS_OF_NUMBERS: Final = (b"enum", b"const", b"imum", b"multipleOf")
_LONG: Final = re.compile(rb"(?=[0-9.]{16})[0-9]*\.[0-9]|[0-9]{15}[eE]|[0-9][eE][+-]?[0-9]{3}")


def _may_hold_long_numbers(raw: bytes) -> bool:
    return any(word in raw for word in _KEYWORDS_OF_NUMBERS) and _LONG.search(raw) is not None


def _restore(body: WireModel, exact: dict[str, Any]) -> None:
    """Replace the floats inside of a body's lists and objects by the numbers that the client wrote."""
    for values in (body.__dict__, body.__pydantic_extra__ or {}):
        for name, value in values.items():
            if isinstance(value, WireModel) and isinstance(exact.get(name), dict):
                _restore(value, exact[name])
            elif isinstance(value, dict | list) and name in exact:
                restore(value, exact[name])


_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as signed bytes


def _check_structure(raw: bytes) -> None:
    """Refuse a body that nests too deep or holds too many containers, before a parser sees it.

    Counts the brackets outside of strings. The parser checks whether brackets match.
    """
    if raw.count(b"[") + raw.count(b"{") <= MAX_JSON_DEPTH:
        return
    structure = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_STEPS, _NOT_STRUCTURE)
    steps = b"".join(structure.split(b'"')[::2])  # the even pieces are outside of strings
    if steps.count(1) > MAX_JSON_CONTAINERS:
        raise InvalidBody(f"the body must hold at most {MAX_JSON_CONTAINERS} lists and objects")
    if max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_JSON_DEPTH:
        raise InvalidBody(f"the body must nest at most {MAX_JSON_DEPTH} deep")


def check_finite(value: Any) -> None:
    """Refuse numbers that are not finite anywhere in a free-form `value`. Raises InvalidBody.

    The parser accepts NaN, Infinity and 1e400 in values of no declared type.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                raise InvalidBody("the body is not valid JSON: numbers must be finite")
        elif isinstance(item, WireModel):
            pending.append(item.__pydantic_extra__)
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
