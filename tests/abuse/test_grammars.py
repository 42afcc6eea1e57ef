"""Schemas and regexes made to hang, to swell or to reach out; others keep streaming meanwhile."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serve_app.api.dialects.openai.completions import CompletionDialect
from serve_app.errors import InvalidField, ServeError
from serve_app.replica.grammar import compiler as module
from serve_app.replica.grammar.compiler import ReplyCache
from serve_app.replica.server import ModelServer
from serve_app.types import ErrorInfo, FinishReason, GenerateRequest, Prompt, SamplingParams
from tests.support.replica import model_server
from tests.support.sink import Sink

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENCE_S = 200  # of the test, for what must be over within 2 s on a machine with nothing else to do


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"allOf": [schema, {"type": "string"}]}
    return schema


def _object(count: int, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}} | fields


SCHEMAS: dict[str, Any] = {
    "endless reference": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "references in a ring": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    "itself": {"$ref": "#"},
    "recursive tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}},
    "any of 10,000 objects": {
        "anyOf": [{"type": "object", "properties": {f"k{i}": {}}, "required": [f"k{i}"]} for i in range(2500)]
    },
    "any of 10,000 numbers": {"anyOf": [{"const": i} for i in range(10_000)]},
    "one of many alike": {
        "oneOf": [{"type": "object", "properties": {"a": {"maxLength": i}}} for i in range(1_000)]
    },
    "a billion items": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 10**9},
    "at least a billion items": {"type": "array", "items": {"type": "string"}, "minItems": 10**9},
    "a billion characters": {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9},
    "10^300 items": {"type": "array", "minItems": 10**300},
    "long enum": {"enum": [f"value {i:06}" for i in range(14_000)]},
    "deep all of": _deep(25),
    "all of different patterns": {
        "allOf": [{"type": "string", "pattern": f"(a{{{i}}}b+)+c"} for i in range(1, 100)]
    },
    "3,000 optional properties": _object(3_000),
    "3,000 required properties": _object(3_000, required=[f"p{i}" for i in range(3_000)]),
    "pattern properties": {
        "type": "object",
        "patternProperties": {f"^(a+)+{i}$": {"type": "integer"} for i in range(500)},
    },
    "pattern with counts": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "nothing": {"not": {}},
    "unknown type": {"type": "banana"},
    "type of the wrong type": {"type": {"a": 1}},
    "broken pattern": {"type": "string", "pattern": "(("},
    "pattern of the wrong type": {"type": "string", "pattern": 5},
    "properties of the wrong type": {"type": "object", "properties": [1, 2]},
    "fine multiples": {"type": "number", "multipleOf": 1e-300, "minimum": 1, "maximum": 1e300},
    "wide range": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "no such place": {"$ref": "#/$defs/missing"},
    "strange pointer": {"$ref": "#/%ff/~2/" + "a/" * 1000},
    "parser options": {"type": "object", "x-guidance": {"whitespace_pattern": "(x{1000}){1000}"}},
}
REGEXES = {
    "nested plus": "(a+)+b",
    "a million": "(x{1000}){1000}",
    "a billion choices": "((a{1,1000}){1,1000}){1,1000}",
    "5,000 letters": r"\p{L}{5000}",
    "10^9 times": "a{1000000000}",
    "states explode": "(.*a.{30}b|.*b.{31}c|.*c.{32}d)",
    "optional run": "a?" * 3_000 + "a" * 3_000,
    "deep brackets": "(" * 8_000 + ")" * 8_000,
    "look-ahead": "(?=a)b",
    "back-reference": r"(a)\1",
    "long choice": "|".join(f"w{i}" for i in range(2_500)),
    "unclosed": "[",
    "not": "~(a)",
}
GRAMMARS = {
    "itself": "start: start",
    "left and right": 'start: start start | "a" | ""',
    "ambiguous": 'start: a+\na: b+\nb: c+\nc: "x"*',
    "a million": "start: /(x{1000}){1000}/",
    "deep": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "a file": "%import .secrets (X)\nstart: X",
    "nul": 'start: "\x00"',
}
SLOW = {  # and like another one that is tried each time
    "schema: any of 10,000 numbers",
    "schema: all of different patterns",
    "schema: 3,000 optional properties",
    "schema: 3,000 required properties",
    "schema: pattern properties",
    "regex: 10^9 times",
    "grammar: a million",
}
BOMBS = [
    *((f"schema: {name}", {"guided_json": value}) for name, value in SCHEMAS.items()),
    *((f"regex: {name}", {"guided_regex": value}) for name, value in REGEXES.items()),
    *((f"grammar: {name}", {"guided_grammar": value}) for name, value in GRAMMARS.items()),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder: Path) -> AsyncIterator[ModelServer]:
    engine = {"max_model_len": 256, "num_blocks": 256}
    async with model_server(engine, name="tiny", source=str(folder), attention="reference") as made:
        yield made


def parse(fields: dict[str, Any], number: int = 0) -> GenerateRequest:
    """The request of a body, through the dialect, which may refuse it."""
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 12, "seed": 1, **fields}
    [request] = CompletionDialect().parse(json.dumps(body).encode()).requests
    return GenerateRequest(
        id=f"abuse-{number}",
        model="tiny",
        prompt=request.prompt,
        sampling=request.sampling,
        grammar=request.grammar,
    )


async def answer(server: ModelServer, request: GenerateRequest) -> Sink:
    sink = Sink()
    await asyncio.wait_for(server.generate(request, sink), PATIENCE_S)
    return sink


@contextlib.asynccontextmanager
async def others_stream(server: ModelServer) -> AsyncIterator[None]:
    """Someone else asks for the same over and over, and always gets the same."""

    def request(number: int) -> GenerateRequest:
        sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        return GenerateRequest(
            id=f"other-{number}", model="tiny", prompt=Prompt(text="One"), sampling=sampling
        )

    def ids(sink: Sink) -> list[int]:
        return [i for d in sink.deltas for i in d.token_ids]

    expected = ids(await answer(server, request(-1)))
    stop = asyncio.Event()
    answers = 0

    async def stream() -> None:
        nonlocal answers
        while not stop.is_set():
            assert ids(await answer(server, request(answers))) == expected
            answers += 1

    task = asyncio.create_task(stream())
    try:
        yield
    finally:
        while not answers and not task.done():  # what is refused at once leaves them no time
            await asyncio.sleep(0.01)
        stop.set()
        await task
    assert answers > 0


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        pytest.param(name, fields, id=name, marks=pytest.mark.full if name in SLOW or number % 3 else ())
        for number, (name, fields) in enumerate(BOMBS)
    ],
)
async def test_a_bomb_is_refused_or_runs_and_harms_no_other(server, name, fields):
    async with others_stream(server):
        finish, error = await end_of(server, fields)
    assert finish in (FinishReason.EOS, FinishReason.LENGTH, FinishReason.ERROR)
    assert (error is None) == (finish is not FinishReason.ERROR)
    if error is not None:
        assert error.kind == "InvalidField"
        assert error.param in ("response_format", *fields)
        assert len(error.reason) < 500
    server.check_health()


async def end_of(server: ModelServer, fields: dict[str, Any]) -> tuple[FinishReason | None, ErrorInfo | None]:
    """How a request ends, refused ones included."""
    try:
        last = (await answer(server, parse(fields))).deltas[-1]
    except ServeError as error:
        return FinishReason.ERROR, error.info()
    return last.finish, last.error


async def test_a_megabyte_of_schema_is_refused_before_anything_is_made_of_it(server):
    with pytest.raises(InvalidField) as caught:
        parse({"guided_json": {"enum": [f"value {i:09}" for i in range(60_000)]}})
    assert caught.value.param == "guided_json"


@pytest.mark.parametrize(
    "scheme", ["http://127.0.0.1:{port}/x.json", "//127.0.0.1:{port}/x", "file://{path}"]
)
async def test_nothing_is_fetched(server, scheme, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "secret"}')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        target = scheme.format(port=listener.getsockname()[1], path=secret)
        for schema in (
            {"$ref": target},
            {"$id": target, "$ref": "#/a"},
            {"$schema": target, "$ref": "x.json"},
        ):
            with pytest.raises(InvalidField):
                await answer(server, parse({"guided_json": schema}))
        with pytest.raises(BlockingIOError):  # nobody called
            listener.accept()


async def check_many(server: ModelServer, count: int) -> None:
    """`count` different schemas, 8 at a time."""
    compiler = server._grammars
    for start in range(0, count, 8):
        await asyncio.gather(
            *[
                answer(server, parse({"guided_json": {"const": i}, "max_tokens": 1}, i))
                for i in range(start, start + 8)
            ]
        )
        assert compiler._cache.num_bytes <= compiler._cache.max_bytes


async def test_many_small_schemas_do_not_fill_the_memory(server, monkeypatch):
    monkeypatch.setattr(server._grammars, "_cache", ReplyCache(50_000))
    async with others_stream(server):
        await check_many(server, 240)
    assert server._grammars._cache.num_bytes > 40_000


@pytest.mark.full
async def test_ten_thousand_small_schemas_do_not_fill_the_memory(server):
    async with others_stream(server):
        await check_many(server, 10_000)
    assert server._grammars._cache.num_bytes <= module.CACHE_BYTES


@pytest.mark.full
async def test_bombs_that_arrive_together_are_refused_one_after_another(server):
    bombs = [{"guided_regex": "(x{1000}){1000}" + "y" * i} for i in range(2)]
    async with others_stream(server):
        outcomes = await asyncio.gather(
            *[answer(server, parse(fields, i)) for i, fields in enumerate(bombs)], return_exceptions=True
        )
        good = await answer(server, parse({"guided_regex": "[0-9]{3}"}, 99))
    assert all(isinstance(o, ServeError | Sink) for o in outcomes)
    assert "".join(d.text for d in good.deltas).isdigit()
