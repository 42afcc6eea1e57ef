"""Reading and parsing bodies: caps, timeouts and strictness."""

import asyncio
import json
import re
from typing import Annotated, Any

import pytest

from serve_app.api.edge.body import ClientGone, WireModel, check_finite, parse_body, read_body
from serve_app.api.protocol.fields import Biases, Boolean, Integer, Integers, Mark, Number, OneOf, Text, Texts
from serve_app.errors import BodyTooLarge, InvalidBody, InvalidField, Overloaded, ReadTimeout
from serve_app.limits import MAX_JSON_CONTAINERS, MAX_JSON_DEPTH
from tests.support.protocol_checks import BODIES


class Options(WireModel):
    flag: Annotated[bool | None, Boolean] = None


class Model(WireModel):
    count: Annotated[int | None, Integer(1, 9)] = None
    share: Annotated[float | None, Number(0, 1, above=True)] = None
    flag: Annotated[bool | None, Boolean] = None
    name: Annotated[str | None, Text(1, 5), Mark.UNANSWERED] = None
    form: Annotated[str | None, OneOf(("float", "base64"))] = None
    options: Options | None = None
    meta: dict[str, Any] | None = None
    stop: Annotated[tuple[str, ...] | None, Texts(2, 3, single=True)] = None
    ids: Annotated[tuple[int, ...] | None, Integers(2, 0, 9)] = None
    bias: Annotated[tuple[tuple[int, float], ...] | None, Biases(2, 99, 5.0)] = None


def receiver(*pieces: bytes, end: bool = True):
    messages = [{"type": "http.request", "body": p, "more_body": True} for p in pieces]
    if end:
        messages[-1]["more_body"] = False

    async def receive():
        if messages:
            return messages.pop(0)
        return await asyncio.Event().wait()

    return receive


def scope(**headers: str):
    return {"headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]}


async def test_pieces_are_joined():
    assert await read_body(scope(), receiver(b"{", b"", b"}")) == b"{}"


async def test_a_declared_length_over_the_cap_is_refused_unread():
    async def receive():
        raise AssertionError("must not be read")

    for length in ("11", "9" * 5_000):
        with pytest.raises(BodyTooLarge):
            await read_body(scope(content_length=length), receive, max_bytes=10)


async def test_the_cap_counts_what_arrives_whatever_was_declared():
    with pytest.raises(BodyTooLarge):
        await read_body(scope(content_length="3"), receiver(b"x" * 6, b"x" * 6, end=False), max_bytes=10)


async def test_a_slow_sender_is_given_up_between_pieces_and_in_total():
    with pytest.raises(ReadTimeout):
        await read_body(scope(), receiver(b"{", end=False), idle_s=0.01)

    async def drip():
        await asyncio.sleep(0.004)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(ReadTimeout):
        await read_body(scope(), drip, idle_s=1.0, total_s=0.03)


async def test_a_departed_client_is_told_apart():
    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await read_body(scope(), receive)


@pytest.mark.parametrize(
    "headers",
    [
        {"content_encoding": "gzip"},
        {"content_encoding": "br, identity"},
        {"content_type": "text/plain"},
        {"content_length": "-1"},
        {"content_length": "²"},
    ],
)
async def test_encodings_and_types_we_do_not_read_are_refused(headers):
    with pytest.raises(InvalidBody):
        await read_body(scope(**headers), receiver(b"{}"))


async def test_usual_headers_pass():
    given = scope(
        content_type="Application/JSON; charset=utf-8", content_encoding="identity", content_length="2"
    )
    assert await read_body(given, receiver(b"{}")) == b"{}"


@pytest.mark.parametrize(
    ("field", "accepted", "refused"),
    [
        ("count", [1, 9, 3.0, -0.0 + 2], [0, 10, 3.5, True, "3", [], {}, 10**30, 1e308]),
        ("share", [0.5, 1, 1e-300], [0, 1.0001, "0.5", True, 10**400, -1]),
        ("flag", [True, False], [1, 0, "true", []]),
        ("name", ["a", "abcde"], ["", "abcdef", 1, ["a"]]),
        ("form", ["float", "base64"], ["", "FLOAT", 1, ["float"]]),
        ("options", [{}, {"flag": True}], [1, [], "x", True]),
        ("meta", [{}, {"x": 1}], [1, [], "x", True]),
        ("stop", ["abc", ["a", "b"], []], ["", "abcd", ["a", ""], ["a", "b", "c"], [1], 1]),
        ("ids", [[], [0, 9], [3.0]], [[10], [-1], [True], ["1"], [1, 2, 3], 1]),
        (
            "bias",
            [{}, {"0": 5, "99": -5.0}],
            [{"100": 0}, {"-1": 0}, {"x": 0}, {"1": 6}, {"1": "0"}, {"1": True}, []],
        ),
    ],
)
def test_fields_take_their_range_and_nothing_else(field, accepted, refused):
    for value in accepted:
        parse_body(Model, json.dumps({field: value}).encode())
    for value in refused:
        raw = json.dumps({field: value}).encode()
        if b"0" * 400 in raw:
            continue
        with pytest.raises(InvalidField) as caught:
            parse_body(Model, raw)
        assert caught.value.param == field
        assert caught.value.message.startswith(f"{field}: must ")


@pytest.mark.parametrize("value", [-5, "\0", [[0]], {"\0": [0]}], ids=str)
def test_no_field_of_any_protocol_is_refused_in_the_librarys_words(value):
    bodies = {body for routes in BODIES.values() for named in routes.values() for body in named.values()}
    refusals = []
    for body in bodies:
        for field in body.model_fields:
            try:
                parse_body(body, json.dumps({field: value}).encode())
            except InvalidField as error:
                refusals.append(error.message)
    assert len(refusals) > 100
    assert [said for said in refusals if not re.search(r": (must|is|cannot|only|words) ", said)] == []


def test_null_is_absent():
    names = list(Model.model_fields)
    assert parse_body(Model, json.dumps(dict.fromkeys(names)).encode()) == parse_body(Model, b"{}")


def test_the_last_of_duplicate_keys_wins():
    assert parse_body(Model, b'{"count":1,"count":2}').count == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b"{} {}",
        b"{}\x00",
        b"{'a':1}",
        b'{"a":1,}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\t"}',
        b'{"a":NaN}',
        b'{"a":[{"b":-Infinity}]}',
        b'{"a":1e400}',
        b'{"a":' + b"9" * 5_000 + b"}",
        b'{"a":01}',
    ],
)
def test_what_is_not_strict_json_is_refused_briefly(raw):
    with pytest.raises(InvalidBody) as caught:
        parse_body(Model, raw)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_named(encoding):
    for text in ("{}", '{"count": 1}'):
        with pytest.raises(InvalidBody, match="byte order mark \\(BOM\\)"):
            parse_body(Model, text.encode(encoding))


def nested(depth: int) -> bytes:
    return b'{"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_nesting_is_bounded():
    parse_body(Model, nested(MAX_JSON_DEPTH))
    for depth in (MAX_JSON_DEPTH + 1, 300, 100_000):
        with pytest.raises(InvalidBody):
            parse_body(Model, nested(depth))


def test_lists_and_objects_are_counted():
    many: list[Any] = [[{}]] * (MAX_JSON_CONTAINERS // 2 - 1)
    parse_body(Model, json.dumps({"x": many}).encode())
    with pytest.raises(InvalidBody):
        parse_body(Model, json.dumps({"x": [*many, []]}).encode())


def test_a_copy_without_the_heavy_fields_has_no_unknown_ones_either():
    body = parse_body(Model, b'{"count":3,"name":"long","unknown":[1]}')
    light = body.for_answer()
    assert (light.count, light.name, light.model_extra) == (3, None, {})


def test_brackets_in_strings_do_not_nest():
    text = "[" * 1_000 + '\\"{' * 100 + "\\"
    parse_body(Model, json.dumps({"x": [text, {"y": text}]}).encode())


def test_wide_is_not_deep():
    parse_body(Model, json.dumps({"x": [{"y": [[]]}] * 10_000}).encode())


def test_free_form_values_must_be_finite_at_any_depth():
    check_finite({"a": [1, 2.5, "x", None, {"b": []}]})
    with pytest.raises(InvalidBody):
        check_finite({"a": [{"b": float("inf")}]})


async def test_every_piece_is_accounted_for_before_it_is_kept():
    taken: list[Any] = []
    await read_body(scope(), receiver(b"ab", b"", b"c"), taken.append)
    assert taken == [2, 0, 1]

    def full(count):
        raise Overloaded("full")

    with pytest.raises(Overloaded):
        await read_body(scope(), receiver(b"ab", end=False), full)
