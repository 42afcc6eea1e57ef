"""Beams, grammars, penalties, processors, watermarks, adapters, plain rows in one batch. Exact, in float32.

Random requests that combine all of it give the tokens, ends and log-probabilities in any mix that
each gives alone: with a random tiny model, whose answers are as odd as can be, and with the demo
model.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.engine import Engine
from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.kernels import native
from serve_app.engine.model.lora import LowRank
from serve_app.engine.request.processors import LogitsProcessor
from serve_app.models.files import eos_token_ids
from serve_app.replica.build import load_engine, load_tokenizer
from serve_app.types import EngineRequest, ProcessorCall
from tests.invariance.test_batch_invariance import MIXES as ALL_MIXES
from tests.invariance.test_batch_invariance import VOCAB, Answer, alone, mixed, new_engine, requests
from tests.invariance.test_constrained_rows import REGEXES
from tests.support.adapters import matrices
from tests.support.divisible import demo_path, demo_settings
from tests.support.engines import divided_engine
from tests.support.tiny_llama import tiny_tokenizer

SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","yes"]}},"required":["a"]}'
# Blocks of a size that our kernels know, else nothing is exact that hangs on the last bit.
MIXES = {name: mix for name, mix in ALL_MIXES.items() if name != "tiny blocks"} | {
    "large blocks": {"block_size": 32, "num_blocks": 24, "max_step_tokens": 50}
}
ROUNDING = 1e-3  # of float32 logits; a wrong row is off by whole numbers
GRAMMARS = [*map(LLMatcher.grammar_from_regex, REGEXES), LLMatcher.grammar_from_json_schema(SCHEMA)]


def lift(tokens: list[int], by: float) -> LogitsProcessor:
    """Makes some tokens likelier, the more so the longer the output."""

    def process(prompt: Sequence[int], output: Sequence[int], logits: torch.Tensor) -> None:
        logits[tokens] += by + 0.1 * (len(prompt) + len(output)) % 1.0

    return process


PROCESSORS = {"lift": f"{__name__}:lift"}
ADAPTERS = ("first", "second")


def adapted(engine: Engine) -> Engine:
    """The engine with random adapters, the same each time."""
    table = engine.adapters
    assert table is not None
    for seed, key in enumerate(ADAPTERS):
        parts = matrices(table.shapes, seed, rank=3 + seed, size=0.1)
        table.put(key, table.compile(LowRank(*place, *pair) for place, pair in parts.items()))
    return engine


def wanted(count: int, seed: int) -> list[EngineRequest]:
    """`requests`, with their beams and options, and a random choice of everything else on top."""
    rng = random.Random(f"mixed {seed}")
    made = []
    for request in requests(count, seed):
        sampling = request.sampling
        if rng.random() < 0.3:
            tokens = rng.sample(range(6, VOCAB), 3)
            call = ProcessorCall(name="lift", arguments=f'{{"tokens":{tokens},"by":{rng.uniform(0, 4)}}}')
            sampling = replace(sampling, processors=(call,))
        if rng.random() < 0.3:
            sampling = replace(sampling, watermark=True)
        if rng.random() < 0.3:
            sampling = replace(sampling, repetition_penalty=1.3, frequency_penalty=0.4)
        grammar = None
        if rng.random() < (0.35 if request.beam is None else 0.6):
            # Masks of the client's that could contradict it are left out.
            grammar = rng.choice(GRAMMARS)
            sampling = replace(
                sampling, ignore_eos=False, bad_words=(), logit_bias=(), stop_token_ids=(), no_repeat_ngram=0
            )
        adapter = rng.choice(ADAPTERS) if rng.random() < 0.6 else None
        made.append(replace(request, sampling=sampling, grammar=grammar, adapter=adapter))
    return made


def kinds(request: EngineRequest) -> list[str]:
    """What is asked for, by name."""
    sampling = request.sampling
    flags = {
        "beam": request.beam is not None,
        "grammar": request.grammar is not None,
        "beam and grammar": request.beam is not None and request.grammar is not None,
        "several": request.n > 1,
        "logprobs": request.logprobs is not None,
        "watermark": sampling.watermark,
        "processor": bool(sampling.processors),
        "penalty": sampling.repetition_penalty != 1.0,
        "adapter": request.adapter is not None,
        "beam and adapter": request.beam is not None and request.adapter is not None,
        "plain": request.beam is None and request.grammar is None and not sampling.processors,
    }
    return [name for name, given in flags.items() if given]


def values(answer: Answer) -> list[float]:
    """Every log-probability of an answer, in order."""
    positions = [*chain.from_iterable(answer.logprobs), *(answer.prompt_logprobs or ())]
    return [value for at in positions for value in (at.logprob, *(other.logprob for other in at.top))]


NewEngine = Callable[..., Engine]


def demo_engine(**engine: object) -> Engine:
    settings = {"max_model_len": 256, "num_blocks": 128, "block_size": 16} | engine
    config = ModelConfig(
        name="demo-chat",
        dtype="float32",
        device="cpu",
        threads=1,
        engine=EngineConfig(**settings, logits_processors=PROCESSORS),
        **demo_settings(),
    )
    if config.tensor_parallel == 1:
        return adapted(load_engine(config, lambda _: None)[0])
    tokenizer = load_tokenizer(config, demo_path())
    ends = eos_token_ids(demo_path(), tokenizer.vocab_size)

    def grammars(vocab_size: int) -> GrammarQueue:
        own = tokenizer.vocab_size
        return GrammarQueue(
            grammar_tokenizer(
                tokenizer.to_json(), vocab_size=vocab_size, own_vocab_size=own, eos_token_ids=ends
            )
        )

    return adapted(divided_engine(config, 256, ends, grammars))


@pytest.fixture(scope="module", params=[pytest.param("tiny", marks=pytest.mark.full), "demo-chat"])
def make(request: pytest.FixtureRequest, folder: Path) -> NewEngine:
    """Makes engines over the same model."""
    return demo_engine if request.param == "demo-chat" else tiny_engines(folder)


def tiny_engines(folder: Path) -> NewEngine:
    """Makes engines over the tiny model in `folder`."""
    backend = tiny_tokenizer().backend_tokenizer
    tokens = grammar_tokenizer(
        backend.to_str(), vocab_size=VOCAB, own_vocab_size=backend.get_vocab_size(), eos_token_ids=[2]
    )

    def tiny_engine(**engine: object) -> Engine:
        grammars = GrammarQueue(tokens)
        return adapted(new_engine(folder, "cpu", grammars=grammars, logits_processors=PROCESSORS, **engine))

    return tiny_engine


def check(make: NewEngine, mix: str, count: int, seed: int) -> None:
    """Each of `count` requests is answered in the mix as it is alone.

    Log-probabilities are equal to the last bit where our kernels compute them; torch's own round
    by the shape of the batch.
    """
    lone = make(prefix_cache=False)
    exact = native() is not None
    answers: dict[str, Answer] = {r.id: alone(lone, r) for r in wanted(count, seed)}
    engine = make(**MIXES[mix])
    noise = [replace(r, id=f"noise-{r.id}") for r in wanted(count // 2, 100 + seed)]
    collected = mixed(engine, wanted(count, seed), noise, seed)
    for request in wanted(count, seed):
        found, expected = collected.answer(request), answers[request.id]
        assert found == expected, request
        said, meant = values(found), values(expected)
        assert said == (meant if exact else pytest.approx(meant, abs=ROUNDING)), request
    assert lone.stats().blocks_used == engine.stats().blocks_used == 0


def test_the_requests_are_as_mixed_as_they_claim() -> None:
    found = Counter(kind for request in wanted(30, 1) for kind in kinds(request))
    assert min(found.values()) >= 2
    assert len(found) == 11


@pytest.mark.parametrize("mix", ["few blocks, odd chunks"])
def test_thirty_mixed_requests_are_answered_as_alone(make: NewEngine, mix: str) -> None:
    check(make, mix, 30, seed=1)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("mix", MIXES)
def test_many_mixed_requests_are_answered_as_alone(make: NewEngine, mix: str, seed: int) -> None:
    check(make, mix, 60, seed)
