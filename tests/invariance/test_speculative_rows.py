"""Drafts, prompt tables, stop sequences, dense biases and plain rows in one batch. Exact, in float32.

Each gives in any mix the tokens it gives alone, with preemptions and aborts around it; and what
drafts guess, or our own proposals, changes no token of a request that draws by its seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from serve_app.types import Draft, EngineRequest, PromptTable, Tensor
from tests.invariance.test_batch_invariance import MIXES, VOCAB, Answer, alone, mixed, new_engine, requests
from tests.invariance.test_constrained_rows import constrained_engine
from tests.invariance.test_constrained_rows import wanted as constrained
from tests.support.tiny_llama import tiny_tokenizer

WIDTH = 64


def tensor(values: np.ndarray) -> Tensor:
    return Tensor(dtype="FP32", shape=values.shape, data=values.astype("<f4").tobytes())


def wanted(count: int, seed: int) -> list[EngineRequest]:
    """`requests` with their beams and options, and what TensorRT-LLM's clients may add, at random."""
    rng, numbers = random.Random(f"speculative {seed}"), np.random.default_rng(seed)
    made = []
    for request in requests(count, seed):
        sampling = request.sampling
        if rng.random() < 0.3:
            stops = tuple(tuple(rng.choices(range(VOCAB), k=rng.choice([1, 2]))) for _ in range(12))
            sampling = replace(sampling, stop_sequences=stops)
        if rng.random() < 0.3:
            sampling = replace(
                sampling, top_p=0.9, top_p_decay=0.9, top_p_min=0.2, top_p_reset_id=rng.randrange(VOCAB)
            )
        request = replace(request, sampling=sampling, generation_logits=rng.random() < 0.2)
        if rng.random() < 0.3:
            request = replace(request, bias=tensor(numbers.normal(size=VOCAB)))
        if rng.random() < 0.3:
            prompt = [VOCAB + rng.randrange(5) if rng.random() < 0.4 else t for t in request.token_ids]
            table = PromptTable(rows=tensor(0.2 * numbers.normal(size=(5, WIDTH))), used=5)
            request = replace(request, token_ids=tuple(prompt), prompt_table=table, prompt_logprobs=None)
        if rng.random() < 0.2:
            request = replace(request, context_logits=True)
        made.append(request)
    return made


def guessed(request: EngineRequest, answer: Answer, seed: int, *, with_logits: bool) -> EngineRequest:
    """The request with a draft that is its answer up to some place, and random after it."""
    rng = random.Random(f"{seed} {request.id}")
    most = (request.sampling.max_tokens or 0) - 1
    if request.beam is not None or most < 1:
        return request
    right = answer.tokens[0][: rng.randint(0, most)]
    tokens = (*right, *(rng.randrange(VOCAB) for _ in range(most)))[: rng.randint(1, most)]
    logits = None
    if with_logits and rng.random() < 0.5:
        rows = np.random.default_rng(seed).normal(size=(len(tokens), VOCAB))
        rows[np.arange(len(tokens)), tokens] += 4
        logits = tensor(rows)
    return replace(request, draft=Draft(token_ids=tokens, logits=logits))


@pytest.fixture(scope="module")
def lone_answers(folder: Path) -> Iterator[dict[str, Answer]]:
    engine = new_engine(folder, "cpu", prefix_cache=False)
    yield {request.id: alone(engine, request) for request in wanted(40, seed=1)}
    assert engine.stats().blocks_used == 0


def check_mix(folder: Path, lone: dict[str, Answer], mix: str, seed: int, **settings: object) -> None:
    plain = wanted(40, seed=1)
    given = [guessed(r, lone[r.id], seed, with_logits=False) for r in plain]
    engine = new_engine(folder, "cpu", **{**MIXES[mix], **settings})
    noise = [
        replace(guessed(r, lone[r.id], seed + 1, with_logits=True), id=f"noise-{r.id}") for r in plain[:20]
    ]
    collected = mixed(engine, given, noise, seed)
    for request in given:
        assert collected.answer(request) == lone[request.id], request
    assert engine.stats().blocks_used == 0
    assert engine.stats().accepted_tokens > 0


@pytest.mark.parametrize("mix", [pytest.param("plenty", marks=pytest.mark.full), "few blocks, odd chunks"])
def test_forty_requests_with_drafts_give_the_tokens_of_lone_runs_without(
    folder: Path, lone_answers: dict[str, Answer], mix: str
) -> None:
    check_mix(folder, lone_answers, mix, seed=7)


@pytest.mark.parametrize("most", [6, "auto"])
def test_our_own_drafts_change_no_token(
    folder: Path, lone_answers: dict[str, Answer], most: int | str
) -> None:
    check_mix(folder, lone_answers, "few blocks, odd chunks", seed=8, ngram_draft=most)


def test_drafts_with_logits_are_drawn_alike_alone_and_in_a_mix(
    folder: Path, lone_answers: dict[str, Answer]
) -> None:
    given = [guessed(r, lone_answers[r.id], 3, with_logits=True) for r in wanted(40, seed=1)]
    engine = new_engine(folder, "cpu", prefix_cache=False)
    lone = {request.id: alone(engine, request) for request in given}
    small = new_engine(folder, "cpu", **MIXES["few blocks, odd chunks"])
    collected = mixed(small, given, [], seed=3)
    for request in given:
        assert collected.answer(request) == lone[request.id], request
    assert small.stats().preemptions > 0
    assert sum(lone[key] != lone_answers[key] for key in lone) > 0  # else the logits had no effect


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mix", MIXES)
def test_forty_requests_with_drafts_in_every_mix(
    folder: Path, lone_answers: dict[str, Answer], mix: str, seed: int
) -> None:
    check_mix(folder, lone_answers, mix, seed, ngram_draft=seed * 3)


def test_drafts_under_a_grammar_change_no_token(folder: Path) -> None:
    backend = tiny_tokenizer().backend_tokenizer
    tokens = grammar_tokenizer(
        backend.to_str(), vocab_size=VOCAB, own_vocab_size=backend.get_vocab_size(), eos_token_ids=[2]
    )
    plain = constrained(seed=2)[:16]
    engine = constrained_engine(folder, tokens, prefix_cache=False)
    lone = {request.id: alone(engine, request) for request in plain}
    given = [guessed(request, lone[request.id], 5, with_logits=False) for request in plain]
    assert any(request.draft is not None and request.grammar is not None for request in given)
    quick = constrained_engine(folder, tokens, ngram_draft=4, max_step_tokens=40)
    collected = mixed(quick, given, [], seed=5)
    for request in given:
        assert collected.answer(request) == lone[request.id], request
