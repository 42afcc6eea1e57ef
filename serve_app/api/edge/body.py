"""From a socket to a checked wire model: reads with a size limit, then parses strict JSON.

Covered: size (declared and real), slow senders, encodings, nesting, NaN and overflow in any value,
lone surrogates, byte-order marks and UTF-16. An error never repeats the input. If a key is duplicated, its
last value wins, as everywhere in Python. Not covered: the meaning of fields, which is up to the dialects.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar, Final, Self, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError
from starlette.types import Receive, Scope

from serve_app import limits
from serve_app.api.context import header
from serve_app.api.protocol.field_doc import FieldDoc
from serve_app.api.protocol.fields import Mark, Sets
from serve_app.errors import BodyTooLarge, InvalidBody, InvalidField, ReadTimeout
from serve_app.json_schema.numerals import loads, restore


class ClientGone(Exception):
    """The client closed the connection, so no answer is needed."""


class WireModel(BaseModel):
    """The base of all wire models. Unknown fields are kept apart: they are reported, but not used.

    A field's annotation contains everything about the field: its type and range, its `FieldDoc`, its marks.
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ()  # unknown fields whose numbers the dialect checks
    fields_beside: ClassVar[Mapping[str, Any]] = {}  # unknown fields that the dialect reads -> their types

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

    @classmethod
    def docs(cls) -> dict[str, FieldDoc]:
        """The documentation of each field by its name, and of the field's members by their paths."""
        found: dict[str, FieldDoc] = {}
        for name, info in cls.model_fields.items():
            nested = wire_model_in(info.annotation)
            found |= _by_path(name, info.json_schema_extra, {} if nested is None else nested.docs())
        for name, shape in cls.fields_beside.items():
            found |= _by_path(name, get_args(shape)[-1], {})
        return found

    @classmethod
    def required(cls) -> list[str]:
        """The fields that a body must have."""
        docs = cls.docs()
        return [name for name in cls.model_fields if name in docs and docs[name].required]

    @property
    def extra(self) -> dict[str, Any]:
        """The unknown fields that are not null, as the client spelt them."""
        return {name: value for name, value in (self.__pydantic_extra__ or {}).items() if value is not None}

    @property
    def names(self) -> dict[str, str]:
        """The client's names of fields, by the names that the replica uses in errors."""
        fields = type(self).model_fields
        return {
            name: path
            for name, path in _sets(type(self)).items()
            if name not in fields or getattr(self, path) is not None
        }

    def for_answer(self) -> Self:
        """A copy with only the fields that the answer needs."""
        apart = _unanswered(type(self))
        kept = {name: value for name, value in self.__dict__.items() if name not in apart}
        return cast(Self, type(self).model_construct(**kept))


def wire_model_in(annotation: Any) -> type[WireModel] | None:
    """The wire model of a field that is an object or null; None: the field has no model of its own."""
    kinds = get_args(annotation) or (annotation,)
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, WireModel)), None)


def _by_path(name: str, doc: Any, nested: Mapping[str, FieldDoc]) -> dict[str, FieldDoc]:
    """The documentation of a field and its members, from the members' own model and from its `FieldDoc`."""
    found = {f"{name}.{member}": each for member, each in nested.items()}
    if isinstance(doc, FieldDoc):
        found |= {name: doc, **{f"{name}.{member}": each for member, each in doc.members.items()}}
    return found


@cache
def _sets(model: type[WireModel]) -> dict[str, str]:
    """A replica's names for some fields -> the paths of these fields."""
    found: dict[str, str] = {}
    for field, info in model.model_fields.items():
        found |= {each.name: field for each in info.metadata if isinstance(each, Sets)}
        if (nested := wire_model_in(info.annotation)) is not None:
            found |= {name: f"{field}.{path}" for name, path in _sets(nested).items()}
    return found


@cache
def _unanswered(model: type[WireModel]) -> frozenset[str]:
    return frozenset(name for name, info in model.model_fields.items() if Mark.UNANSWERED in info.metadata)


@cache
def _unchecked(model: type[WireModel]) -> tuple[str, ...]:
    """Fields whose values may contain numbers that were not checked by any type."""
    return tuple(
        name
        for name, info in model.model_fields.items()
        if Mark.SELF_CHECKED not in info.metadata
        and not any(isinstance(each, PlainValidator) for each in info.metadata)
    )


Wire = TypeVar("Wire", bound=WireModel)


JSON_TYPE: Final = "application/json"
# The types that a body of JSON may have. curl says "form" of what `-d` sends.
_BODY_TYPES: Final = frozenset({"", JSON_TYPE, "application/x-www-form-urlencoded"})


async def read_body(
    scope: Scope,
    receive: Receive,
    take: Callable[[int], None] = lambda count: None,
    *,
    max_bytes: int = limits.MAX_BODY_BYTES,
    idle_s: float = limits.BODY_READ_TIMEOUT_S,
    total_s: float = limits.MAX_BODY_READ_S,
) -> bytes:
    """Read the body of a JSON request. Raises InvalidBody, BodyTooLarge, ReadTimeout or ClientGone.

    `take` is called with the size of every piece that arrives, and raises to refuse the piece.
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
    """Raises InvalidBody for a Content-Type that JSON bodies may not have."""
    if (content_type or "").partition(";")[0].strip().lower() not in _BODY_TYPES:
        raise InvalidBody(f"Content-Type must be {JSON_TYPE}")


def parse_body(model: type[Wire], raw: bytes) -> Wire:
    """`raw` as a `model`. Raises InvalidBody (if not JSON or not an object) or InvalidField."""
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
    extra = {name: value for name, value in body.extra.items() if name not in body.may_be_infinite}
    check_finite([extra, *(getattr(body, name) for name in _unchecked(model))])
    return body


# Of UTF-8 and UTF-16; the mark of UTF-32 begins with the latter, or with two zeros.
_BYTE_ORDER_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def check_encoding(raw: bytes) -> None:
    """Refuse a text with a byte-order mark. Raises InvalidBody."""
    if raw.startswith(_BYTE_ORDER_MARKS):
        raise InvalidBody("the body begins with a byte order mark (BOM); send JSON in UTF-8 without one")


def _public(error: Any) -> InvalidBody | InvalidField:
    if error["type"] == "json_invalid":
        return InvalidBody("the body is not valid JSON (UTF-8, no NaN, no lone surrogates, limited nesting)")
    if not error["loc"]:
        return InvalidBody("the body must be a JSON object")
    field, path = str(error["loc"][0]), ".".join(map(str, error["loc"]))
    return InvalidField(field, f"{path}: {_REASONS.get(error['type'], error['msg'])}", joint=None)


# Our messages for errors of pydantic itself. The types of fields have their own messages.
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
    """In a body's lists and objects, replace floats by the exact numbers that the client wrote."""
    for values in (body.__dict__, body.__pydantic_extra__ or {}):
        for name, value in values.items():
            if isinstance(value, WireModel) and isinstance(exact.get(name), dict):
                _restore(value, exact[name])
            elif isinstance(value, dict | list) and name in exact:
                restore(value, exact[name])


_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1 as signed bytes


def _check_structure(raw: bytes) -> None:
    """Refuse a body that nests too deeply or contains too many lists and objects, before a parser sees it.

    Counts the brackets outside of strings. The parser checks whether brackets match.
    """
    if raw.count(b"[") + raw.count(b"{") <= limits.MAX_JSON_DEPTH:
        return
    structure = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_STEPS, _NOT_STRUCTURE)
    steps = b"".join(structure.split(b'"')[::2])  # the even pieces are outside of strings
    if steps.count(1) > limits.MAX_JSON_CONTAINERS:
        raise InvalidBody(f"the body must hold at most {limits.MAX_JSON_CONTAINERS} lists and objects")
    if max(accumulate(memoryview(steps).cast("b")), default=0) > limits.MAX_JSON_DEPTH:
        raise InvalidBody(f"the body must nest at most {limits.MAX_JSON_DEPTH} deep")


def check_finite(value: Any) -> None:
    """Refuse numbers that are not finite anywhere in a free-form `value`. Raises InvalidBody.

    The parser accepts NaN, Infinity and 1e400 in values without a declared type.
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
