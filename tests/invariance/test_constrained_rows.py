"""Constrained and free requests in one batch give the tokens that each gives alone. Exact, in float32."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLMatcher, LLTokenizer

from serve_app.engine.engine import Engine
from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.types import EngineRequest
from tests.invariance.test_batch_invariance import MIXES, VOCAB, Answer, alone, mixed, new_engine, requests
from tests.support.tiny_llama import tiny_tokenizer

REGEXES = (
    "[0-9]{1,12}",
    "(the|a) (quick|lazy) (brown )?(fox|dog)( jumps| sleeps){0,3}",
    r'\{"name":"[a-z]{1,8}","numbers":\[[0-9](,[0-9]){0,4}\]\}',
    "([A-Z][a-z]{0,5} ?)+",
)


@pytest.fixture(scope="module")
def tokens() -> LLTokenizer:
    backend = tiny_tokenizer().backend_tokenizer
    return grammar_tokenizer(
        backend.to_str(), vocab_size=VOCAB, own_vocab_size=backend.get_vocab_size(), eos_token_ids=[2]
    )


def constrained_engine(folder: Path, tokens: LLTokenizer, **changes: object) -> Engine:
    return new_engine(folder, "cpu", grammars=GrammarQueue(tokens), **changes)


def wanted(seed: int) -> list[EngineRequest]:
    """Every other request under a grammar; masks of the client's that could contradict it are left out."""
    rng = random.Random(seed)
    made = []
    for number, request in enumerate(requests(40, seed=seed)):
        if number % 2:
            sampling = replace(
                request.sampling, ignore_eos=False, bad_words=(), logit_bias=(), stop_token_ids=()
            )
            grammar = LLMatcher.grammar_from_regex(rng.choice(REGEXES))
            request = replace(request, sampling=sampling, grammar=grammar)
        made.append(request)
    return made


@pytest.fixture(scope="module")
def lone_answers(folder: Path, tokens: LLTokenizer) -> Iterator[dict[str, Answer]]:
    engine = constrained_engine(folder, tokens, prefix_cache=False)
    yield {request.id: alone(engine, request) for request in wanted(seed=1)}
    assert engine.stats().blocks_used == 0


def check_mix(folder: Path, tokens: LLTokenizer, lone: dict[str, Answer], mix: str, seed: int) -> Engine:
    engine = constrained_engine(folder, tokens, **MIXES[mix])
    noise = [replace(r, id=f"noise-{r.id}") for r in wanted(seed=100 + seed)[:20]]
    collected = mixed(engine, wanted(seed=1), noise, seed)
    for request in wanted(seed=1):
        assert collected.answer(request) == lone[request.id], request
    assert engine.stats().blocks_used == 0
    return engine


@pytest.mark.parametrize(
    "mix", [pytest.param("small chunks", marks=pytest.mark.full), "few blocks, odd chunks"]
)
def test_forty_requests_give_the_same_tokens_in_a_mix(
    folder: Path, tokens: LLTokenizer, lone_answers: dict[str, Answer], mix: str
) -> None:
    engine = check_mix(folder, tokens, lone_answers, mix, seed=7)
    if mix.startswith("few blocks"):
        assert engine.stats().preemptions > 0


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mix", MIXES)
def test_forty_requests_give_the_same_tokens_in_every_mix(
    folder: Path, tokens: LLTokenizer, lone_answers: dict[str, Answer], mix: str, seed: int
) -> None:
    check_mix(folder, tokens, lone_answers, mix, seed)
