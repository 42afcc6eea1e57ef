"""A prefix that several prompts have is computed once, also where they arrive together.

Over a runner whose tokens depend on the whole prefix, so that a wrong block or state shows as a wrong token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from serve_app.config import EngineConfig
from serve_app.engine.engine import Engine
from serve_app.types import Beam, ChoiceSoFar, Draft, EngineRequest, FinishReason, SamplingParams
from tests.support.fakes import VOCAB_SIZE, EvilRunner, Faults, greedy_tokens

BLOCK = 4
PREFIX = tuple(i * 7 % VOCAB_SIZE for i in range(40))  # ten blocks
A, B, C = (*PREFIX, 1, 2, 3), (*PREFIX, 4, 5), (*PREFIX, 6, 7, 8, 9, 10)


@dataclass
class Bench:
    """An engine that is checked after every step."""

    blocks: int = 200
    step_tokens: int = 16
    sequences: int = 8
    faults: Faults = field(default_factory=Faults)
    slots: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self.runner = EvilRunner(self.faults, self.blocks, BLOCK, self.slots)
        config = EngineConfig(max_sequences=self.sequences, max_step_tokens=self.step_tokens)
        self.engine = Engine(self.runner, config, eos_token_ids=frozenset(), max_model_len=120)
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], FinishReason] = {}

    def add(self, request_id: str, prompt: tuple[int, ...], **fields: object) -> EngineRequest:
        fields = {"sampling": SamplingParams(temperature=0.0, max_tokens=5), **fields}
        request = EngineRequest(id=request_id, token_ids=prompt, **fields)  # type: ignore[arg-type]
        self.engine.add(request)
        return request

    def step(self) -> None:
        for output in self.engine.step():
            key = (output.request_id, output.index)
            self.tokens.setdefault(key, []).extend(output.token_ids)
            if output.finish is not None:
                self.ends[key] = output.finish
        self.engine.check_integrity()

    def drain(self) -> None:
        for _ in range(3000):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def computed(self, request_id: str) -> int:
        """The tokens of a request that went through the model."""
        return sum(n for batch in self.runner.batches for name, _, n in batch if name == request_id)


@pytest.fixture(params=[0, 64], ids=["attention", "states"], autouse=True)
def _kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "slots", request.param)


def test_prompts_that_arrive_together_compute_their_prefix_once() -> None:
    bench = Bench()
    for name, prompt in (("a", A), ("b", B), ("c", C)):
        bench.add(name, prompt)
    bench.drain()
    assert bench.computed("a") == len(A) + 4
    assert bench.computed("b") == len(B) - len(PREFIX) + 4
    assert bench.computed("c") == len(C) - len(PREFIX) + 4
    for name, prompt in (("a", A), ("b", B), ("c", C)):
        assert bench.tokens[name, 0] == greedy_tokens(prompt, 5)


def test_a_prompt_that_arrives_while_its_prefix_is_computed_waits_for_it() -> None:
    bench = Bench()
    bench.add("a", A)
    bench.step()
    bench.add("b", B)
    bench.drain()
    assert bench.computed("b") == len(B) - len(PREFIX) + 4
    assert bench.tokens["b", 0] == greedy_tokens(B, 5)


def test_other_prompts_go_on_meanwhile() -> None:
    bench = Bench(step_tokens=32)
    bench.add("a", A)
    bench.add("b", B)
    bench.add("other", (9, 9, 9))
    bench.step()
    assert [name for name, _, _ in bench.runner.batches[0]] == ["a", "other"]


def test_tenants_share_nothing() -> None:
    bench = Bench()
    bench.add("a", A, salt="one")
    bench.add("b", B, salt="two")
    bench.drain()
    assert bench.computed("b") == len(B) + 4


def test_a_follower_takes_over_when_the_first_is_aborted() -> None:
    bench = Bench()
    bench.add("a", A)
    bench.add("b", B)
    bench.add("c", C)
    bench.step()
    bench.engine.abort("a")
    bench.drain()
    assert bench.computed("a") == 16
    assert bench.computed("b") == len(B) - 16 + 4, "what the first had computed is kept"
    assert bench.computed("c") == len(C) - len(PREFIX) + 4
    assert bench.tokens["b", 0] == greedy_tokens(B, 5)
    assert bench.tokens["c", 0] == greedy_tokens(C, 5)


def test_a_follower_takes_over_when_the_first_fails() -> None:
    bench = Bench()
    bench.add("a", A)
    bench.add("b", B)
    bench.step()
    bench.faults.raise_for.add("a")
    bench.drain()
    assert bench.ends["a", 0] is FinishReason.ERROR
    assert bench.computed("b") == len(B) + 4, "blocks of a sequence that failed are not trusted"
    assert bench.tokens["b", 0] == greedy_tokens(B, 5)


def test_a_more_urgent_prompt_does_not_wait_for_a_less_urgent_one() -> None:
    bench = Bench()
    bench.add("a", A)
    bench.step()
    bench.add("b", B, priority=1)
    bench.step()
    assert bench.runner.batches[-1][0][0] == "b"
    bench.drain()
    assert bench.computed("a") + bench.computed("b") == len(A) + len(B) - len(PREFIX) + 8
    assert bench.tokens["a", 0] == greedy_tokens(A, 5)
    assert bench.tokens["b", 0] == greedy_tokens(B, 5)


def test_choices_that_go_on_elsewhere_compute_their_prompt_once() -> None:
    bench = Bench()
    begun = tuple(ChoiceSoFar(token_ids=tuple(greedy_tokens(A, 2))) for _ in range(3))
    bench.add("a", A, n=3, begun=begun)
    bench.drain()
    assert bench.computed("a") < 2 * len(A)
    assert [bench.tokens["a", i] for i in range(3)] == [greedy_tokens(A, 5)[2:]] * 3


@pytest.mark.parametrize("right", range(5))
def test_the_next_turn_finds_what_accepted_tokens_of_a_draft_filled(right: int) -> None:
    bench, answer = Bench(), greedy_tokens(A, 5)
    wrong = tuple((token + 1) % VOCAB_SIZE for token in answer[right:-1])
    bench.add("a", A, draft=Draft(token_ids=(*answer[:right], *wrong)))
    bench.drain()
    assert bench.tokens["a", 0] == answer
    turn = (*A, *answer, 1, 2)
    bench.add("b", turn)
    bench.drain()
    assert bench.computed("b") == len(turn) - 44 + 4, "the answer filled the block that ends at 44"
    assert bench.tokens["b", 0] == greedy_tokens(turn, 5)


def test_a_choice_does_not_write_where_a_draft_filled_a_block_for_another_one() -> None:
    parted = 0
    for seed in range(6):
        sampling = SamplingParams(temperature=1.0, seed=seed, max_tokens=9)
        alone = Bench()
        alone.add("a", A, n=2, sampling=sampling)
        alone.drain()
        bench, answer = Bench(step_tokens=64), tuple(alone.tokens["a", 0])
        bench.add("a", A, n=2, sampling=sampling, draft=Draft(token_ids=answer[:-1]))
        bench.step()
        assert ("a", 0) in bench.ends
        parted += ("a", 1) not in bench.ends
        bench.drain()
        assert bench.tokens == alone.tokens
        turn = (*A, *answer, 1)
        bench.add("b", turn)
        bench.drain()
        assert bench.tokens["b", 0] == greedy_tokens(turn, 5)
    assert parted


def test_a_prompt_whose_log_probabilities_are_wanted_computes_all_of_it() -> None:
    bench = Bench()
    bench.add("a", A)
    bench.add("b", B, prompt_logprobs=0)
    bench.drain()
    assert bench.computed("b") == len(B) + 4
    assert bench.tokens["b", 0] == greedy_tokens(B, 5)


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(i, marks=pytest.mark.full) for i in range(12, 200))]
)
def test_answers_are_those_of_prompts_alone_whatever_happens(seed: int) -> None:
    """Shared prefixes, tenants, priorities, aborts, failing steps, few blocks, forks, beams and drafts."""
    rng = random.Random(seed)
    bench = Bench(
        blocks=rng.choice([30, 45, 120]),
        step_tokens=rng.choice([16, 24, 64]),
        sequences=rng.choice([2, 4, 8]),
    )
    bench.faults.raise_at.update(rng.sample(range(200), 6))
    families = [tuple(rng.randrange(VOCAB_SIZE) for _ in range(40)) for _ in range(3)]
    asked: dict[str, EngineRequest] = {}
    aborted = set()
    while len(asked) < 30 or bench.engine.has_work():
        if len(asked) < 30 and rng.random() < 0.4:
            name = f"r{len(asked)}"
            own = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 12)))
            prompt = rng.choice(families)[: rng.randrange(41)] + own
            kind = rng.random()
            fields: dict[str, object] = {"salt": rng.choice("ab"), "priority": rng.choice([0, 0, 1])}
            if kind < 0.2:
                fields["n"] = 2
            elif kind < 0.4:
                fields["beam"] = Beam(width=2)
            elif kind < 0.6:
                answer, right = greedy_tokens(prompt, 4), rng.randrange(5)
                fields["draft"] = Draft(token_ids=(*answer[:right], *(0 for _ in answer[right:])))
            asked[name] = bench.add(name, prompt, **fields)
        elif asked and rng.random() < 0.05:
            name = rng.choice(list(asked))
            aborted.add(name)
            bench.engine.abort(name)
        bench.step()
        assert bench.engine.stats().steps < 5000
    # A step that fails with a single chunk fails its request, which nothing else can be told to have done.
    failed = {name for (name, _), end in bench.ends.items() if end is FinishReason.ERROR}
    assert len(failed) <= len(bench.faults.raise_at)
    for name, request in asked.items():
        for index in range(request.n):
            if name not in aborted | failed:
                assert bench.ends[name, index] is FinishReason.LENGTH
                assert request.beam is not None or len(bench.tokens[name, index]) == 5
            if request.beam is None:
                expected, told = greedy_tokens(request.token_ids, 5), bench.tokens.get((name, index), [])
                assert expected[: len(told)] == told
