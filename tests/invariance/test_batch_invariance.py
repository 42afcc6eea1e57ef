"""The same request gives the same tokens, alone or among others. Exact, in float32.

Every engine here runs real modules on real attention; what varies is everything
that must not matter: neighbours, arrivals, aborts, chunk sizes, preemption, prefix
hits and the number of blocks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from serve_app.engine.engine import Engine
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.types import Beam, EarlyStopping, EngineRequest, FinishReason, PositionLogprobs, SamplingParams
from tests.support.engines import WINDOW, engine_over

VOCAB = 384


@dataclass(frozen=True)
class Answer:
    """All that a client would see of one request, by choice."""

    tokens: tuple[tuple[int, ...], ...]
    finish: tuple[FinishReason, ...]
    # Equal to the last bit with the kernels of ours alone: torch's own round by the shape of the batch.
    logprobs: tuple[tuple[PositionLogprobs, ...], ...] = field(default=(), compare=False)
    prompt_logprobs: tuple[PositionLogprobs, ...] | None = field(default=None, compare=False)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def attention(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def new_engine(
    folder: Path, attention: str, grammars: GrammarQueue | None = None, **engine: object
) -> Engine:
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    engine = {"max_model_len": WINDOW, **engine}
    return engine_over(module, attention=attention, grammars=grammars, engine=engine)


def settings(rng: random.Random) -> SamplingParams:
    """Greedy or seeded, with a few of the options that change logits."""
    base = SamplingParams(
        max_tokens=rng.randint(1, 40), seed=rng.getrandbits(64), ignore_eos=rng.random() < 0.5
    )
    if rng.random() < 0.4:
        base = replace(base, temperature=0.0)
    else:
        base = replace(base, temperature=rng.choice([0.3, 0.8, 1.3]))
    options: list[dict[str, object]] = [
        {"top_k": rng.randint(2, 60)},
        {"top_p": rng.uniform(0.3, 0.99)},
        {"min_p": rng.uniform(0.01, 0.3)},
        {"typical_p": rng.uniform(0.3, 0.95)},
        {"repetition_penalty": rng.uniform(1.05, 1.6)},
        {"presence_penalty": rng.uniform(-1, 1.5), "frequency_penalty": rng.uniform(-0.5, 1.0)},
        {"logit_bias": tuple((rng.randrange(VOCAB), rng.uniform(-9, 9)) for _ in range(5))},
        {"bad_words": ((rng.randrange(VOCAB),), (rng.randrange(VOCAB), rng.randrange(VOCAB)))},
        {"min_tokens": 8},
        {"no_repeat_ngram": rng.randint(1, 4)},
        {"watermark": True},
        {"stop_token_ids": tuple(rng.sample(range(VOCAB), 20))},
    ]
    for option in rng.sample(options, rng.randint(0, 3)):
        base = replace(base, **option)  # type: ignore[arg-type]
    return base


def requests(count: int, seed: int) -> list[EngineRequest]:
    """Prompts of many lengths; a third of them begin alike, so that prefixes can be hit."""
    rng = random.Random(seed)
    shared = [rng.randrange(6, VOCAB) for _ in range(70)]
    made = []
    for number in range(count):
        own = [rng.randrange(6, VOCAB) for _ in range(rng.randint(1, 100))]
        prompt = shared[: rng.randint(20, 70)] + own if number % 3 == 0 else own
        beam = None
        if number % 5 == 1:  # short enough for all beams to fit the smallest cache
            width = rng.choice([2, 3, 4])
            beam = Beam(
                width=width,
                groups=rng.choice([1, width]),
                length_penalty=rng.choice([0.0, 1.0, 2.0]),
                early_stopping=rng.choice(list(EarlyStopping)),
                diversity_penalty=0.5,
            )
            prompt = prompt[:40]
        made.append(
            EngineRequest(
                id=f"r{number}",
                token_ids=tuple(prompt),
                sampling=settings(rng),
                n=rng.choice([1, 1, 1, 2, 3]) if beam is None else rng.randint(1, beam.width),
                beam=beam,
                logprobs=rng.choice([None, None, 0, 4]),
                prompt_logprobs=rng.choice([None] * 5 + [1]),
                salt=rng.choice(["", "", "tenant"]),
            )
        )
    return made


class Collected:
    """Outputs of an engine, put together by request."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[str, int], list[int]] = {}
        self._finish: dict[tuple[str, int], FinishReason] = {}
        self._logprobs: dict[tuple[str, int], list[PositionLogprobs]] = {}
        self._prompts: dict[str, tuple[PositionLogprobs, ...]] = {}

    def step(self, engine: Engine) -> None:
        for output in engine.step():
            key = output.request_id, output.index
            self._tokens.setdefault(key, []).extend(output.token_ids)
            self._logprobs.setdefault(key, []).extend(output.logprobs)
            if output.prompt_logprobs is not None:
                self._prompts[output.request_id] = output.prompt_logprobs
            if output.finish is not None:
                assert key not in self._finish
                self._finish[key] = output.finish
        engine.check_integrity()

    def answer(self, request: EngineRequest) -> Answer:
        keys = [(request.id, index) for index in range(request.n)]
        return Answer(
            tuple(tuple(self._tokens[k]) for k in keys),
            tuple(self._finish[k] for k in keys),
            tuple(tuple(self._logprobs[k]) for k in keys),
            self._prompts.get(request.id),
        )


def alone(engine: Engine, request: EngineRequest) -> Answer:
    engine.add(request)
    collected = Collected()
    while engine.has_work():
        collected.step(engine)
    return collected.answer(request)


def mixed(engine: Engine, wanted: list[EngineRequest], noise: list[EngineRequest], seed: int) -> Collected:
    """Requests arrive in random order between steps; noise arrives too and is aborted half-way."""
    rng = random.Random(seed)
    arriving = [*wanted, *noise]
    rng.shuffle(arriving)
    aborted = {r.id for r in noise}
    alive: list[str] = []
    collected = Collected()
    while arriving or engine.has_work():
        for _ in range(min(len(arriving), rng.choice([0, 0, 1, 3, 8]))):
            request = arriving.pop()
            engine.add(replace(request, priority=rng.choice([0, 0, 1])))
            if request.id in aborted:
                alive.append(request.id)
        if alive and rng.random() < 0.3:
            engine.abort(alive.pop(rng.randrange(len(alive))))
        if engine.has_work():
            collected.step(engine)
    return collected


MIXES: dict[str, dict[str, object]] = {
    "plenty": {},
    "small chunks": {"max_step_tokens": 24},
    "few blocks": {"num_blocks": 24},
    "few blocks, odd chunks": {"num_blocks": 20, "max_step_tokens": 37, "max_sequences": 9},
    "no prefix cache": {"prefix_cache": False, "max_step_tokens": 64},
    "tiny blocks": {"block_size": 4, "num_blocks": 130, "max_step_tokens": 50},
    "overlapped": {"overlap": True, "num_blocks": 40, "max_step_tokens": 64, "max_sequences": 9},
}


@pytest.fixture(scope="module")
def lone_answers(folder: Path, attention: str) -> Iterator[dict[str, Answer]]:
    engine = new_engine(folder, attention, prefix_cache=False)
    yield {request.id: alone(engine, request) for request in requests(50, seed=1)}
    assert engine.stats().blocks_used == 0


def check_mix(folder: Path, attention: str, lone: dict[str, Answer], mix: str, seed: int) -> Engine:
    engine = new_engine(folder, attention, **MIXES[mix])
    wanted = requests(50, seed=1)
    noise = [replace(r, id=f"noise-{r.id}") for r in requests(20, seed=100 + seed)]
    collected = mixed(engine, wanted, noise, seed)
    for request in wanted:
        assert collected.answer(request) == lone[request.id], request
    assert engine.stats().blocks_used == 0
    return engine


@pytest.mark.parametrize(
    "mix",
    [
        "few blocks, odd chunks",
        pytest.param("small chunks", marks=pytest.mark.full),
        pytest.param("overlapped", marks=pytest.mark.full),  # tests/unit/engine/test_overlap.py has it, too
    ],
)
def test_fifty_prompts_give_the_same_tokens_in_a_mix(
    folder: Path, attention: str, lone_answers: dict[str, Answer], mix: str
) -> None:
    engine = check_mix(folder, attention, lone_answers, mix, seed=7)
    if mix.startswith("few blocks"):
        assert engine.stats().preemptions > 0
    assert engine.stats().cached_tokens > 0


def test_a_prefix_computed_once_for_several_cold_prompts_gives_each_its_own_tokens(
    folder: Path, attention: str
) -> None:
    rng = random.Random(11)
    prefix = [rng.randrange(6, VOCAB) for _ in range(120)]
    asked = [
        EngineRequest(
            id=f"r{number}",
            token_ids=(*prefix, *(rng.randrange(6, VOCAB) for _ in range(1 + 3 * number))),
            sampling=SamplingParams(max_tokens=8, seed=number, temperature=0.0 if number % 2 else 0.8),
        )
        for number in range(6)
    ]
    lone = new_engine(folder, attention, prefix_cache=False)
    expected = [alone(lone, request) for request in asked]
    engine = new_engine(folder, attention, max_step_tokens=50)
    before = engine.stats().computed_tokens
    for request in asked:
        engine.add(request)
    collected = Collected()
    while engine.has_work():
        collected.step(engine)
    assert [collected.answer(request) for request in asked] == expected
    own = sum(len(request.token_ids) - 112 for request in asked)  # seven blocks of the prefix are full
    # The last token of a prompt may count as a decode; a block that is computed twice is 16 tokens more.
    assert 112 + own - len(asked) <= engine.stats().computed_tokens - before <= 112 + own


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mix", MIXES)
def test_fifty_prompts_give_the_same_tokens_in_every_mix(
    folder: Path, attention: str, lone_answers: dict[str, Answer], mix: str, seed: int
) -> None:
    check_mix(folder, attention, lone_answers, mix, seed)


def test_an_answer_of_a_chat_finds_its_prefix_again(folder: Path, attention: str) -> None:
    engine = new_engine(folder, attention)
    first = EngineRequest(
        id="turn-1",
        token_ids=tuple(range(10, 90)),
        sampling=SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
    )
    answer = alone(engine, first)
    longer = replace(first, id="turn-2", token_ids=(*first.token_ids, *answer.tokens[0], 50, 51, 52))
    with_hit = alone(engine, longer)
    assert engine.stats().cached_tokens >= 96
    assert with_hit == alone(new_engine(folder, attention, prefix_cache=False), longer)
    other_tenant = alone(engine, replace(longer, id="turn-3", salt="other"))
    assert other_tenant == with_hit


def test_another_tenant_never_hits(folder: Path, attention: str) -> None:
    engine = new_engine(folder, attention)
    request = EngineRequest(
        id="a",
        token_ids=tuple(range(10, 120)),
        sampling=SamplingParams(temperature=0.0, max_tokens=2),
        salt="a",
    )
    alone(engine, request)
    alone(engine, replace(request, id="b", salt="b"))
    assert engine.stats().cached_tokens == 0
    alone(engine, replace(request, id="c"))
    assert engine.stats().cached_tokens > 0
