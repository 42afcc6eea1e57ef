"""Grammars are tried out in a process of their own, and remembered."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from serve_app.errors import InvalidField, Overloaded, Unavailable, UnsupportedField
from serve_app.replica.grammar import compiler as module
from serve_app.replica.grammar import sandbox
from serve_app.replica.grammar.compiler import GrammarCompiler, ReplyCache
from serve_app.replica.grammar.messages import SandboxReply, SandboxSetup
from serve_app.text.answer.grammar import serialise
from serve_app.types import Grammar, GrammarKind
from tests.support.tiny_llama import tiny_tokenizer

GREEDY_REGEX = "(x{1000}){1000}"


def setup(**changes: object) -> SandboxSetup:
    backend = tiny_tokenizer().backend_tokenizer
    fields = {
        "tokenizer_json": backend.to_str(),
        "vocab_size": 384,
        "own_vocab_size": backend.get_vocab_size(),
        "eos_token_ids": (2,),
    }
    return SandboxSetup(**fields | changes)  # type: ignore[arg-type]


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(setup())
    yield made
    made.close()


def regex(text: str) -> Grammar:
    return Grammar(kind=GrammarKind.REGEX, text=text)


async def test_a_good_grammar_comes_back_compiled_and_is_remembered(compiler):
    grammar = Grammar(kind=GrammarKind.SCHEMA, text='{"type":"integer"}')
    assert await compiler.compile(grammar) == serialise(grammar)
    compiler.close()  # without its child only the cache can answer
    assert await compiler.compile(grammar) == serialise(grammar)
    assert 0 < compiler._cache.num_bytes <= module.CACHE_BYTES
    with pytest.raises(Unavailable):
        await compiler.compile(regex("a"))


async def test_a_refusal_is_remembered_too(compiler):
    for _ in range(2):
        with pytest.raises(InvalidField) as caught:
            await compiler.compile(regex("(("))
        assert caught.value.param == "response_format"
        compiler._sandbox.end()


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (regex("((("), "unclosed group"),
        (regex("(?=a)b"), "look-around"),
        (Grammar(kind=GrammarKind.LARK, text="start: start"), "no text matches"),
        (Grammar(kind=GrammarKind.SCHEMA, text='{"type":"banana"}'), "banana"),
        (Grammar(kind=GrammarKind.SCHEMA, text='{"enum":[]}'), "anyOf is empty"),
        (regex("a?" * 3_000 + "a" * 3_000), "fewer alternatives"),
    ],
)
async def test_a_refusal_says_what_is_wrong(compiler, grammar, words):
    with pytest.raises(InvalidField) as caught:
        await compiler.compile(grammar)
    assert words in caught.value.message
    assert len(caught.value.message) < 300


async def test_a_grammar_that_kills_the_child_costs_only_itself(compiler, monkeypatch):
    await compiler.compile(regex("a"))
    first = compiler._sandbox._child.pid
    monkeypatch.setattr(sandbox, "LIMIT_S", 0.05)
    with pytest.raises(InvalidField, match="seconds or too much memory"):
        await compiler.compile(regex(GREEDY_REGEX))
    monkeypatch.undo()
    assert await compiler.compile(regex("b")) == serialise(regex("b"))
    assert compiler._sandbox._child.pid != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


async def test_the_same_grammar_asked_at_once_is_tried_once(compiler):
    grammar = regex("[a-z]{3}")
    answers = await asyncio.gather(*[compiler.compile(grammar) for _ in range(20)])
    assert set(answers) == {serialise(grammar)}


async def test_too_many_waiting_grammars_are_refused_at_once(compiler, monkeypatch):
    monkeypatch.setattr(module, "MAX_QUEUED", 3)
    waiting = [compiler.compile(regex(f"a{i}")) for i in range(8)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(o) for o in outcomes] == [str] * 3 + [Overloaded] * 5


async def test_a_model_that_grammars_do_not_fit_says_so():
    compiler = GrammarCompiler(setup(eos_token_ids=()))
    try:
        for _ in range(2):
            with pytest.raises(UnsupportedField, match="end-of-sequence"):
                await compiler.compile(regex("a"))
    finally:
        compiler.close()


def test_the_cache_forgets_the_answers_used_longest_ago():
    cache = ReplyCache(10_000)
    for i in range(100):
        cache.put(bytes([i]), SandboxReply(compiled="x" * 100))
        assert cache.num_bytes <= 10_000
        assert cache.get(bytes([0])) is not None
    assert cache.get(bytes([1])) is None
    assert cache.get(bytes([99])) is not None
    cache.put(b"huge", SandboxReply(compiled="x" * 10_000))
    assert cache.get(b"huge") is None


async def test_a_child_that_died_while_it_had_nothing_to_do_costs_no_grammar(compiler):
    assert await compiler.compile(regex("a"))
    child = compiler._sandbox._child
    child.kill()
    child.wait()
    assert await compiler.compile(regex("b")) == serialise(regex("b"))
