"""Answers of a real model that must match: every completed one does."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from serve_app.errors import InvalidField
from serve_app.json_schema import COMPACT
from serve_app.replica.server import ModelServer
from serve_app.types import (
    FinishReason,
    GenerateRequest,
    Grammar,
    GrammarKind,
    Prompt,
    SamplingParams,
)
from tests.support.replica import model_server
from tests.support.schemas import SchemaMaker
from tests.support.sink import Sink

pytestmark = pytest.mark.asyncio(loop_scope="module")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
QUESTION = Prompt(messages=({"role": "user", "content": "What is the capital of France?"},))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServer]:
    async with model_server({"max_sequences": 24, "num_blocks": 2048}, name="demo-chat") as made:
        yield made


def schema(value: Any) -> Grammar:
    return Grammar(kind=GrammarKind.SCHEMA, text=json.dumps(value))


async def ask(server: ModelServer, grammar: Grammar | None, seed: int = 1, **changes: Any) -> Sink:
    sampling = SamplingParams(temperature=0.8, seed=seed, max_tokens=300)
    request = GenerateRequest(
        id=f"{id(grammar)}-{seed}", model="demo-chat", prompt=QUESTION, sampling=sampling, grammar=grammar
    )
    sink = Sink()
    await server.generate(replace(request, **changes), sink)
    return sink


async def check_schemas(server: ModelServer, seeds: range) -> None:
    """Every completed answer is valid, and most are completed."""
    schemas = {seed: SchemaMaker(seed).make() for seed in seeds}
    sinks = await asyncio.gather(*[ask(server, schema(s), seed) for seed, s in schemas.items()])
    completed = 0
    for (seed, wanted), sink in zip(schemas.items(), sinks, strict=True):
        assert sink.finish() in (FinishReason.EOS, FinishReason.LENGTH), (seed, sink.deltas[-1])
        if sink.finish() is FinishReason.EOS:
            completed += 1
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            jsonschema.Draft202012Validator(wanted, format_checker=checker).validate(json.loads(sink.text()))
    assert completed >= 0.75 * len(seeds)  # the others ran into max_tokens


async def test_answers_to_25_random_schemas_are_valid(server):
    await check_schemas(server, range(25))


@pytest.mark.full
async def test_answers_to_200_random_schemas_are_valid(server):
    await check_schemas(server, range(25, 225))


async def test_any_json_object(server):
    sink = await ask(server, Grammar(kind=GrammarKind.JSON))
    assert sink.text().lstrip().startswith("{")
    if sink.finish() is FinishReason.EOS:
        assert isinstance(json.loads(sink.text()), dict)


async def test_a_schemas_answer_has_the_models_own_spaces_or_none(server):
    greedy = SamplingParams(temperature=0.0, max_tokens=100)
    words = "What is the capital of France? Answer in JSON with the keys country and capital."
    prompt = Prompt(messages=({"role": "user", "content": words},))
    names = ["country", "capital"]
    properties = {name: {"type": "string"} for name in names}
    told = schema({"type": "object", "properties": properties, "required": names})
    for grammar in (None, Grammar(kind=GrammarKind.JSON), told):
        sink = await ask(server, grammar, prompt=prompt, sampling=greedy)
        assert sink.text() == '{"country": "France", "capital": "Paris"}'
    compact = (await ask(server, replace(schema(CITY), space=COMPACT))).text()
    assert compact == json.dumps(json.loads(compact), separators=(",", ":"), ensure_ascii=False)


async def test_members_that_are_not_declared_are_not_invented(server):
    """Every answer comes to an end, though JSON Schema leaves the object open."""
    open_object = schema({key: value for key, value in CITY.items() if key != "additionalProperties"})
    for seed in range(8):
        sink = await ask(server, open_object, seed)
        assert sink.finish() is FinishReason.EOS
        assert set(json.loads(sink.text())) == {"city", "people"}


async def test_regex_and_choice(server):
    pattern = "[A-Z][a-z]{2,8} is (big|small)[.!]"
    sink = await ask(server, Grammar(kind=GrammarKind.REGEX, text=pattern))
    assert re.fullmatch(pattern, sink.text())
    sink = await ask(server, Grammar(kind=GrammarKind.CHOICE, text='["Rome","Paris","Oslo"]'))
    assert sink.text() == "Paris"  # which the model knows


async def test_length_leaves_incomplete_json(server):
    sink = await ask(server, schema(CITY), sampling=SamplingParams(max_tokens=3, seed=1))
    assert sink.finish() is FinishReason.LENGTH
    with pytest.raises(ValueError):
        json.loads(sink.text())


async def test_choices_differ_and_all_match(server):
    sink = await ask(server, schema(CITY), n=4)
    texts = [sink.text(i) for i in range(4)]
    for text in texts:
        jsonschema.validate(json.loads(text), CITY)
    assert len(set(texts)) > 1


async def test_the_best_of_several_matches(server):
    sink = await ask(server, schema(CITY), best_of=4, stream=False)
    jsonschema.validate(json.loads(sink.text()), CITY)


async def test_end_tokens_end_an_answer_whatever_the_client_says(server):
    sink = await ask(
        server, schema(CITY), sampling=SamplingParams(ignore_eos=True, max_tokens=300, seed=1, min_tokens=290)
    )
    assert sink.finish() is FinishReason.EOS
    jsonschema.validate(json.loads(sink.text()), CITY)


async def test_an_answer_is_the_same_alone_and_among_others(server):
    grammars = [schema(SchemaMaker(seed).make()) for seed in range(6)]
    alone = [(await ask(server, g, 100 + i)).text() for i, g in enumerate(grammars)]
    free = (await ask(server, None, 99)).text()
    *together, unconstrained = await asyncio.gather(
        *[ask(server, g, 100 + i) for i, g in enumerate(grammars)], ask(server, None, 99)
    )
    assert [sink.text() for sink in together] == alone
    assert unconstrained.text() == free


async def test_forced_tokens_change_no_answer(server):
    """With log-probabilities nothing is forced; the greedy answer is the same either way."""
    greedy = SamplingParams(temperature=0.0, max_tokens=200)
    fewer = 0
    for seed in range(8):
        grammar = schema(SchemaMaker(seed).make())
        jumping = await ask(server, grammar, seed, sampling=greedy)
        sampled = await ask(server, grammar, seed, sampling=greedy, logprobs=0)
        assert jumping.text() == sampled.text()
        fewer += len(jumping.deltas) < len(sampled.deltas)
    assert fewer >= 4


async def test_a_schema_that_cannot_be_names_the_field(server):
    with pytest.raises(InvalidField) as caught:
        await ask(server, schema({"type": "banana"}))
    assert caught.value.param == "response_format"
    assert "banana" in caught.value.message
