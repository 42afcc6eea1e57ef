"""The engine over runners without weights: every rule of a request's life."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from serve_app.config import EngineConfig
from serve_app.engine.batch import Batch
from serve_app.engine.cache.blocks import IntegrityError
from serve_app.engine.engine import Engine
from serve_app.engine.finish import EngineDead
from serve_app.engine.model.isolation import MAX_STRIKES
from serve_app.errors import EngineRefused, FieldError, Overloaded, PromptTooLong
from serve_app.limits import MAX_BAD_WORD_TOKENS
from serve_app.types import Beam, EngineOutput, EngineRequest, FinishReason, SamplingParams, StepTiming
from tests.support.fakes import (
    VOCAB_SIZE,
    ArgmaxSampler,
    EvilRunner,
    Faults,
    HashRunner,
    UniformRunner,
    greedy_tokens,
)

ChoiceId = tuple[str, int]  # request id, index


@dataclass
class Bench:
    """An engine that is checked after every step, and what its outputs added up to."""

    runner: HashRunner = field(default_factory=HashRunner)
    eos: Iterable[int] = ()
    window: int = 128
    sampler: ArgmaxSampler | None = None
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = 100.0
        config = EngineConfig.model_validate({"max_sequences": 8, "max_step_tokens": 16, **self.settings})
        self.engine = Engine(
            self.runner,
            config,
            eos_token_ids=frozenset(self.eos),
            max_model_len=self.window,
            sampler=self.sampler,
            clock=lambda: self.now,
        )
        self.tokens: dict[ChoiceId, list[int]] = {}
        self.ends: dict[ChoiceId, EngineOutput] = {}

    def add(self, request_id: str, prompt: Iterable[int] = (1, 2, 3), **fields: object) -> None:
        known = {f: fields.pop(f) for f in list(fields) if f in EngineRequest.__dataclass_fields__}
        sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 6, **fields})  # type: ignore[arg-type]
        self.engine.add(
            EngineRequest(id=request_id, token_ids=tuple(prompt), sampling=sampling, **known)  # type: ignore[arg-type]
        )

    def step(self) -> list[EngineOutput]:
        outputs = self.engine.step()
        self.engine.check_integrity()
        self.take(outputs)
        return outputs

    def take(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            line = (output.request_id, output.index)
            assert line not in self.ends, "nothing follows an end"
            self.tokens.setdefault(line, []).extend(output.token_ids)
            if output.finish is not None:
                self.ends[line] = output

    def drain(self) -> None:
        for _ in range(10_000):
            if not self.engine.has_work():
                break
            self.step()
        assert not self.engine.has_work()
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.waiting_tokens, stats.blocks_used) == (0, 0, 0, 0)

    def finish_of(self, request_id: str, index: int = 0) -> FinishReason | None:
        return self.ends[request_id, index].finish

    def error_of(self, request_id: str, index: int = 0) -> str:
        end = self.ends[request_id, index]
        assert end.finish is FinishReason.ERROR
        assert end.error is not None
        return end.error.kind


# --- tokens and ends ------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 17, 40])
def test_tokens_are_those_of_the_model_whatever_the_length_of_the_prompt(length: int) -> None:
    bench = Bench()
    prompt = [i % VOCAB_SIZE for i in range(length)]
    bench.add("a", prompt, max_tokens=9)
    bench.drain()
    assert bench.tokens["a", 0] == greedy_tokens(prompt, 9)
    assert bench.finish_of("a") is FinishReason.LENGTH


def test_eos_ends_a_sequence_and_is_part_of_its_tokens() -> None:
    expected = greedy_tokens((1, 2, 3), 6)
    bench = Bench(eos={expected[2]})
    bench.add("a")
    bench.drain()
    assert bench.tokens["a", 0] == expected[: expected.index(expected[2]) + 1]
    assert bench.finish_of("a") is FinishReason.EOS


def test_eos_is_told_before_a_stop_token_and_before_the_length() -> None:
    (first,) = greedy_tokens((1, 2, 3), 1)
    bench = Bench(eos={first})
    bench.add("a", max_tokens=1, stop_token_ids=(first,))
    bench.drain()
    assert bench.finish_of("a") is FinishReason.EOS


def test_ignored_eos_goes_on_to_the_length() -> None:
    expected = greedy_tokens((1, 2, 3), 6)
    bench = Bench(eos=set(expected))
    bench.add("a", ignore_eos=True)
    bench.drain()
    assert bench.tokens["a", 0] == expected
    assert bench.finish_of("a") is FinishReason.LENGTH


def test_a_stop_token_ends_with_reason_stop_even_at_the_length() -> None:
    (first,) = greedy_tokens((1, 2, 3), 1)
    bench = Bench()
    bench.add("a", max_tokens=1, stop_token_ids=(first,))
    bench.drain()
    assert bench.finish_of("a") is FinishReason.STOP


def test_without_max_tokens_a_sequence_runs_until_the_context_is_full() -> None:
    bench = Bench(window=10)
    bench.add("a", max_tokens=None)
    bench.drain()
    assert len(bench.tokens["a", 0]) == 7
    assert bench.finish_of("a") is FinishReason.CONTEXT


def test_the_context_is_never_larger_than_the_cache() -> None:
    bench = Bench(HashRunner(num_blocks=3, block_size=4), window=1000)
    bench.add("a", max_tokens=None)
    bench.drain()
    assert len(bench.tokens["a", 0]) == 9


def test_min_tokens_hold_back_eos_until_they_are_there() -> None:
    bench = Bench(UniformRunner(), eos={0})  # the lowest id wins ties: EOS at once
    bench.add("a", max_tokens=6, min_tokens=3)
    bench.drain()
    assert bench.tokens["a", 0] == [1, 1, 1, 0]


def test_a_seed_gives_the_same_tokens_again_and_no_seed_gives_others() -> None:
    bench = Bench()
    for name, seed in (("a", 7), ("b", 7), ("c", None), ("d", None)):
        bench.add(name, temperature=2.0, seed=seed, max_tokens=30)
    bench.drain()
    assert bench.tokens["a", 0] == bench.tokens["b", 0]
    assert bench.tokens["c", 0] != bench.tokens["d", 0]


def test_logprobs_come_one_a_token_and_prompt_logprobs_with_the_first() -> None:
    bench = Bench()
    prompt = list(range(20))
    bench.add("a", prompt, logprobs=2, prompt_logprobs=1, max_tokens=2)
    outputs = [output for _ in range(3) for output in bench.step()]
    assert [[p.token_id for p in o.logprobs] for o in outputs] == [list(o.token_ids) for o in outputs]
    assert all(len(o.logprobs[0].top) == 2 for o in outputs)
    assert outputs[0].prompt_logprobs is not None
    assert [p.token_id for p in outputs[0].prompt_logprobs] == prompt[1:]
    assert outputs[1].prompt_logprobs is None


def test_the_first_token_brings_the_times_since_arrival() -> None:
    bench = Bench(settings={"max_sequences": 1})
    bench.add("a", max_tokens=2)
    bench.add("b", max_tokens=2)
    bench.now += 1
    first = bench.step()[0].timing
    assert first is not None
    assert (first.queue_s, first.first_token_s) == (1.0, 1.0)
    assert bench.step()[0].timing is None
    bench.now += 1
    second = bench.step()[0].timing
    assert second is not None
    assert second.queue_s == 2.0


class TickingRunner(HashRunner):
    """A step takes two seconds of the bench's clock."""

    bench: Bench

    def run(self, batch: Batch) -> torch.Tensor:
        self.bench.now += 2.0
        return super().run(batch)


@pytest.mark.parametrize("width", [None, 3])
def test_every_token_tells_of_its_step_when_asked_to(width: int | None) -> None:
    runner = TickingRunner()
    bench = runner.bench = Bench(runner)
    beam = None if width is None else Beam(width=width)
    bench.add("a", max_tokens=3, timings=True, beam=beam)
    bench.add("b", max_tokens=3)
    steps: list[Any] = []
    for pause in (1.0, 0.5, 0.25):
        bench.now += pause
        for output in bench.step():
            assert output.request_id == "a" or not output.steps
            steps += output.steps
    beams = width or 1
    assert steps == [
        StepTiming(batch_size=2, wait_s=1.0, run_s=2.0),
        StepTiming(batch_size=beams + 1, wait_s=0.5, run_s=2.0),
        StepTiming(batch_size=beams + 1, wait_s=0.25, run_s=2.0),
    ]


def test_forks_wait_from_the_arrival_for_their_first_tokens() -> None:
    runner = TickingRunner()
    bench = runner.bench = Bench(runner)
    bench.add("a", max_tokens=2, timings=True, n=2)
    bench.now += 1.0
    assert [o.steps for o in bench.step()] == [(StepTiming(batch_size=1, wait_s=1.0, run_s=2.0),)] * 2
    assert [o.steps for o in bench.step()] == [(StepTiming(batch_size=2, wait_s=0.0, run_s=2.0),)] * 2


# --- forks ----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 4, 5])
def test_n_sequences_share_one_prompt_and_go_their_own_ways(length: int) -> None:
    bench = Bench()
    bench.add("many", range(length), n=4, temperature=2.0, seed=3, max_tokens=9)
    bench.drain()
    together = [bench.tokens["many", i] for i in range(4)]
    assert len({tuple(t) for t in together}) == 4
    assert sum(n for batch in bench.runner.batches[:1] for _, _, n in batch) == length
    assert bench.engine.stats().prompt_tokens == length


def test_a_fork_gives_the_same_tokens_with_a_cache_too_small_for_all() -> None:
    tokens = []
    for blocks in (64, 5):
        bench = Bench(HashRunner(num_blocks=blocks))
        bench.add("many", range(6), n=5, temperature=2.0, seed=3, max_tokens=9)
        bench.drain()
        tokens.append(bench.tokens)
    assert tokens[0] == tokens[1]
    assert bench.engine.stats().preemptions > 0


def test_more_forks_than_places_in_the_batch_wait_for_theirs() -> None:
    bench = Bench(settings={"max_sequences": 2})
    bench.add("many", range(6), n=5)
    bench.drain()
    assert {tuple(t) for t in bench.tokens.values()} == {tuple(greedy_tokens(range(6), 6))}
    assert len(bench.ends) == 5


def test_all_forks_may_end_with_their_first_token() -> None:
    bench = Bench()
    bench.add("many", range(6), n=3, max_tokens=1)
    bench.drain()
    assert len(bench.ends) == 3


def test_every_fork_reports_the_prompt_logprobs() -> None:
    bench = Bench()
    bench.add("many", range(6), n=2, prompt_logprobs=0, max_tokens=1)
    outputs = bench.step()
    assert [len(o.prompt_logprobs or ()) for o in outputs] == [5, 5]


# --- the prefix cache -----------------------------------------------------------------


def test_a_second_request_computes_only_what_the_first_left() -> None:
    bench = Bench()
    prompt = list(range(14))
    bench.add("a", prompt)
    bench.drain()
    bench.add("b", prompt)
    bench.drain()
    assert bench.tokens["a", 0] == bench.tokens["b", 0]
    assert (bench.ends["a", 0].cached_tokens, bench.ends["b", 0].cached_tokens) == (0, 12)
    assert ("b", 12, 2) in [chunk for batch in bench.runner.batches for chunk in batch]
    assert bench.engine.stats().cached_tokens == 12


def test_an_answer_is_a_prefix_of_the_next_turn() -> None:
    bench = Bench()
    bench.add("a", range(6), max_tokens=8)
    bench.drain()
    bench.add("b", [*range(6), *bench.tokens["a", 0], 5])
    bench.drain()
    assert bench.ends["b", 0].cached_tokens == 12


def test_tenants_do_not_see_each_others_prefixes() -> None:
    bench = Bench()
    for name, salt in (("a", "alice"), ("b", "bob")):
        bench.add(name, range(14), salt=salt)
        bench.drain()
    assert bench.ends["b", 0].cached_tokens == 0


def test_prompt_logprobs_use_no_hit() -> None:
    bench = Bench()
    bench.add("a", range(14))
    bench.drain()
    bench.add("b", range(14), prompt_logprobs=0, max_tokens=1)
    (output,) = bench.step()
    assert output.cached_tokens == 0
    assert len(output.prompt_logprobs or ()) == 13


def test_what_ran_past_a_stop_is_not_indexed() -> None:
    bench = Bench()
    bench.add("a", range(4), max_tokens=20)
    for _ in range(10):
        bench.step()
    tokens = list(bench.tokens["a", 0])
    assert bench.engine.finish("a", 0, num_tokens=4)
    bench.drain()
    assert ("a", 0) not in bench.ends, "the caller knows that it ended"
    bench.add("b", [*range(4), *tokens])
    bench.drain()
    assert bench.ends["b", 0].cached_tokens == 8


def test_finish_of_something_unknown_or_ended_does_nothing() -> None:
    bench = Bench()
    bench.add("a", n=2)
    bench.step()
    assert not bench.engine.finish("zzz", 0, 1)
    assert bench.engine.finish("a", 1, 1)
    assert not bench.engine.finish("a", 1, 1)
    bench.drain()
    assert set(bench.ends) == {("a", 0)}


def test_finish_does_nothing_until_the_choices_are_forked() -> None:
    bench = Bench()
    bench.add("a", range(24), n=3)  # two steps of prompt
    bench.step()
    for index in range(3):
        assert not bench.engine.finish("a", index, 0)
        bench.engine.check_integrity()
    bench.drain()
    assert [bench.tokens["a", index] for index in range(3)] == [greedy_tokens(range(24), 6)] * 3


# --- abort, deadline, refusal ---------------------------------------------------------


def test_abort_is_legal_in_every_state() -> None:
    bench = Bench(settings={"max_sequences": 1})
    bench.engine.abort("a")
    bench.add("a")
    bench.add("b")
    bench.engine.abort("b")  # waiting
    bench.step()
    bench.engine.abort("a")  # running
    bench.engine.abort("a")
    bench.drain()
    bench.engine.abort("a")  # gone
    assert bench.finish_of("a") is bench.finish_of("b") is FinishReason.ABORT


def test_abort_ends_every_fork_once() -> None:
    bench = Bench()
    bench.add("before", n=3)
    bench.engine.abort("before")
    bench.add("after", n=3)
    bench.step()
    bench.engine.abort("after")
    bench.drain()
    assert len(bench.ends) == 6


def test_a_deadline_ends_a_request_in_every_state() -> None:
    bench = Bench(HashRunner(num_blocks=4), settings={"max_sequences": 2})
    bench.add("running", range(7), timeout_s=5.0, max_tokens=None)
    bench.add("preempted", range(7), timeout_s=5.0, max_tokens=None)
    bench.add("waiting", n=2, timeout_s=5.0)
    bench.add("unhurried")
    while not bench.engine.stats().preemptions:
        bench.step()
    bench.now += 5.0
    bench.step()
    for name in ("running", "preempted", "waiting"):
        assert bench.error_of(name) == "DeadlineExceeded"
    assert bench.error_of("waiting", 1) == "DeadlineExceeded"
    bench.drain()
    assert bench.tokens["unhurried", 0] == greedy_tokens((1, 2, 3), 6)


def test_a_deadline_does_not_hit_a_later_request_of_the_same_id() -> None:
    bench = Bench()
    bench.add("a", timeout_s=5.0)
    bench.drain()
    bench.ends.clear()
    bench.tokens.clear()
    bench.add("a")
    bench.now += 10
    bench.drain()
    assert bench.finish_of("a") is FinishReason.LENGTH


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    bench = Bench(settings={"max_sequences": 1, "max_waiting": 1})
    bench.add("a")
    bench.step()
    bench.add("b")
    with pytest.raises(Overloaded) as refusal:
        bench.add("c")
    assert refusal.value.retry_after_s
    bench.drain()
    assert set(bench.ends) == {("a", 0), ("b", 0)}


def test_without_waiting_places_a_request_is_taken_while_the_batch_has_room() -> None:
    bench = Bench(settings={"max_sequences": 1, "max_waiting": 0})
    bench.add("a")
    with pytest.raises(Overloaded):
        bench.add("b")
    bench.drain()
    bench.add("b")
    bench.drain()


def test_an_id_that_is_in_use_is_refused() -> None:
    bench = Bench()
    bench.add("a")
    with pytest.raises(EngineRefused):
        bench.add("a")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (VOCAB_SIZE,)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 126}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 10_000}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"timeout_s": 0.0}, "timeout"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"penalize_prompt": True, "repetition_sees_prompt": False}, "penalize_prompt"),
        ({"typical_p": float("nan")}, "typical_p"),
        ({"seed": 2**64}, "seed"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"logit_bias": ((VOCAB_SIZE, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, float("inf")),)}, "logit_bias"),
        ({"stop_token_ids": (VOCAB_SIZE,)}, "stop_token_ids"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids"),
        ({"bad_words": ((),)}, "bad_words"),
        ({"bad_words": ((1,) * (MAX_BAD_WORD_TOKENS + 1),)}, "bad_words"),
        ({"bad_words": ((1, VOCAB_SIZE),)}, "bad_words"),
    ],
)
def test_a_field_that_could_break_a_step_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    bench = Bench()
    with pytest.raises(FieldError) as refusal:
        bench.add("a", **fields)  # type: ignore[arg-type]
    assert refusal.value.param == param
    assert not bench.engine.has_work()


def test_a_prompt_that_leaves_no_room_for_a_token_is_too_long() -> None:
    bench = Bench(HashRunner(num_blocks=2))
    with pytest.raises(PromptTooLong) as refusal:
        bench.add("a", range(8), max_tokens=None)
    assert refusal.value.param == "prompt"
    bench.add("b", range(7), max_tokens=1)
    bench.drain()


# --- isolation ------------------------------------------------------------------------


def neighbours(bench: Bench, poison: str, **fields: object) -> None:
    """Run `poison` among others, and check that the others do not notice."""
    prompts = {name: [i, i + 1, i + 2, 5, 6] for i, name in enumerate(("a", "b", "c"))}
    for name, prompt in prompts.items():
        bench.add(name, prompt)
        if name == "b":
            bench.add(poison, [9, 9, 9, 9, 9], **fields)
    bench.drain()
    for name, prompt in prompts.items():
        assert bench.tokens[name, 0] == greedy_tokens(prompt, 6)


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_that_raises_fails_alone(n: int) -> None:
    bench = Bench(EvilRunner(Faults(raise_for={"poison"})))
    neighbours(bench, "poison", n=n)
    assert {bench.error_of("poison", i) for i in range(n)} == {"GenerationFailed"}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 20 bytes"),
        MemoryError(),
    ],
    ids=["device", "torch on a CPU", "Python"],
)
def test_a_request_that_lacks_memory_fails_alone_and_says_so(error: Exception) -> None:
    bench = Bench(EvilRunner(Faults(raise_for={"poison"}, error=error)))
    neighbours(bench, "poison")
    told = bench.ends["poison", 0].error
    assert told is not None
    assert told.kind == "GenerationFailed"
    assert "ran out of memory with this request" in told.reason


def test_a_step_that_lacks_memory_runs_chunk_by_chunk() -> None:
    bench = Bench(EvilRunner(Faults(raise_at={0, 3}, error=torch.OutOfMemoryError("CUDA out of memory"))))
    bench.add("a")
    bench.add("b", range(9))
    bench.drain()
    assert bench.tokens["a", 0] == greedy_tokens((1, 2, 3), 6)
    assert bench.tokens["b", 0] == greedy_tokens(range(9), 6)


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_whose_logits_are_not_finite_fails_alone(n: int) -> None:
    bench = Bench(EvilRunner(Faults(nan_for={"poison"})))
    neighbours(bench, "poison", n=n)
    assert {bench.error_of("poison", i) for i in range(n)} == {"NumericalError"}


def test_prompt_logprobs_that_are_not_finite_fail_alone() -> None:
    bench = Bench(EvilRunner(Faults(nan_for={"poison"})))
    neighbours(bench, "poison", prompt_logprobs=1)
    assert bench.error_of("poison") == "NumericalError"


def test_a_request_that_breaks_the_sampler_fails_alone() -> None:
    bench = Bench(sampler=ArgmaxSampler(raise_for={"poison"}))
    neighbours(bench, "poison", n=2)
    assert {bench.error_of("poison", i) for i in range(2)} == {"GenerationFailed"}


def test_the_blocks_of_a_failed_request_are_not_found_by_others() -> None:
    faults = Faults()
    bench = Bench(EvilRunner(faults))
    bench.add("poison", range(14), max_tokens=9)
    bench.step()
    faults.nan_for = {"poison"}
    bench.drain()
    bench.add("next", range(14))
    bench.drain()
    assert bench.ends["next", 0].cached_tokens == 0


def test_a_step_that_raises_once_costs_nobody_anything() -> None:
    bench = Bench(EvilRunner(Faults(raise_at={0, 3})))
    bench.add("a")
    bench.add("b", range(9))
    bench.drain()
    assert bench.tokens["a", 0] == greedy_tokens((1, 2, 3), 6)
    assert bench.tokens["b", 0] == greedy_tokens(range(9), 6)


def test_poisonous_requests_alone_in_the_engine_do_not_kill_it() -> None:
    names = [f"poison{i}" for i in range(2 * MAX_STRIKES)]
    bench = Bench(EvilRunner(Faults(raise_for=set(names))))
    for name in names:
        bench.add(name)
        bench.drain()
        assert bench.error_of(name) == "GenerationFailed"
    bench.add("good")
    bench.drain()
    assert bench.finish_of("good") is FinishReason.LENGTH


def test_poison_in_a_full_cache_gives_way_until_the_device_can_be_probed() -> None:
    bench = Bench(EvilRunner(Faults(raise_for={"a", "b"}), num_blocks=2))
    bench.add("a", range(4), max_tokens=4)
    bench.add("b", range(4), max_tokens=4)
    bench.drain()
    assert bench.error_of("a") == bench.error_of("b") == "GenerationFailed"


def test_forks_whose_copies_fail_end_and_the_others_go_on() -> None:
    faults = Faults(copies=True)
    bench = Bench(EvilRunner(faults))
    bench.add("many", range(6), n=3)
    bench.add("one", range(7))
    bench.drain()
    finishes = sorted(str(bench.finish_of("many", i)) for i in range(3))
    assert finishes == ["error", "error", "length"], "the last holder writes in place"
    assert bench.tokens["one", 0] == greedy_tokens(range(7), 6)


def test_a_broken_device_ends_every_request_as_retryable_and_the_engine_with_it() -> None:
    faults = Faults()
    bench = Bench(EvilRunner(faults))
    bench.add("a")
    bench.add("b", n=2)
    bench.step()
    bench.step()
    bench.add("c")
    faults.broken = True
    for _ in range(MAX_STRIKES - 1):
        assert bench.step() == []
    with pytest.raises(EngineDead) as dead:
        bench.step()
    bench.take(dead.value.outputs)
    assert {bench.error_of(*line) for line in (("a", 0), ("b", 0), ("b", 1), ("c", 0))} == {"Unavailable"}
    assert not bench.engine.has_work()
    bench.engine.check_integrity()


def test_a_device_that_recovers_in_time_costs_nobody_anything() -> None:
    faults = Faults()
    bench = Bench(EvilRunner(faults))
    bench.add("a")
    bench.step()
    faults.broken = True
    bench.step()
    faults.broken = False
    bench.drain()
    assert bench.tokens["a", 0] == greedy_tokens((1, 2, 3), 6)


def test_check_integrity_notices_a_sequence_without_a_request() -> None:
    bench = Bench()
    bench.add("a")
    bench.step()
    del bench.engine._groups["a"]
    with pytest.raises(IntegrityError):
        bench.engine.check_integrity()


# --- invariance -----------------------------------------------------------------------


def alone(request: EngineRequest, prefix_cache: bool = False) -> Bench:
    bench = Bench(HashRunner(num_blocks=512), eos={31}, settings={"prefix_cache": prefix_cache})
    bench.engine.add(replace(request, timeout_s=None))
    bench.drain()
    return bench


def random_request(rng: random.Random, name: str, room: int) -> EngineRequest:
    stem = [[7, 7, 7, 7, 8, 8, 8, 8, 9], [1, 2, 3, 4], []][rng.randrange(3)]
    prompt = stem + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 12))]
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.7, 2.0]),
        top_p=rng.choice([1.0, 0.9]),
        top_k=rng.choice([0, 0, 5]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        seed=rng.randrange(2**64),
        max_tokens=rng.randrange(1, room - len(prompt)),
        ignore_eos=rng.random() < 0.5,
    )
    return EngineRequest(
        id=name,
        token_ids=tuple(prompt),
        sampling=sampling,
        n=rng.choice([1, 1, 1, 3]),
        logprobs=rng.choice([None, None, 2]),
        prompt_logprobs=rng.choice([None, None, None, 1]),
        priority=rng.choice([0, 0, 1]),
        salt=rng.choice(["", "x"]),
    )


def random_trace(seed: int, requests: int) -> int:
    """Run one random mix; every sequence must match its solo run. Returns the preemptions."""
    rng = random.Random(seed)
    blocks = rng.choice([10, 12, 20, 60])
    bench = Bench(
        HashRunner(num_blocks=blocks),
        eos={31},
        settings={
            "max_sequences": rng.choice([2, 5, 16]),
            "max_step_tokens": rng.choice([16, 17, 64]),
            "max_waiting": 1000,
            "prefix_cache": rng.random() < 0.8,
        },
    )
    todo = [random_request(rng, str(i), room=40) for i in range(requests)]
    made = {request.id: request for request in todo}
    cut: set[ChoiceId] = set()
    prompt_logprobs: dict[ChoiceId, object] = {}
    while todo or bench.engine.has_work():
        while todo and rng.random() < 0.5:
            bench.engine.add(todo.pop())
        if rng.random() < 0.05:
            bench.engine.abort(rng.choice(list(made)))
        for output in bench.step():
            line = (output.request_id, output.index)
            if output.prompt_logprobs is not None:
                prompt_logprobs[line] = output.prompt_logprobs
            if output.finish is None and rng.random() < 0.03:
                assert bench.engine.finish(*line, num_tokens=rng.randrange(len(bench.tokens[line]) + 1))
                cut.add(line)
    bench.drain()
    for name, request in made.items():
        solo = alone(request)
        for index in range(request.n):
            line = (name, index)
            got, expected = bench.tokens.get(line, []), solo.tokens[line]
            if line in cut or bench.finish_of(*line) is FinishReason.ABORT:
                assert got == expected[: len(got)]
            else:
                assert got == expected
                assert bench.finish_of(*line) is solo.finish_of(*line)
            if request.prompt_logprobs is not None and got:
                assert [p.token_id for p in prompt_logprobs[line]] == list(request.token_ids[1:])  # type: ignore[attr-defined]
    assert bench.engine.stats().generated_tokens == sum(map(len, bench.tokens.values())), "no token twice"
    return bench.engine.stats().preemptions


def test_any_mix_gives_every_request_the_tokens_it_gets_alone() -> None:
    preemptions = sum(random_trace(seed, requests=12) for seed in range(12))
    assert preemptions > 20, "the mixes must be tight enough to mean something"


@pytest.mark.full
def test_many_mixes_give_every_request_the_tokens_it_gets_alone() -> None:
    for seed in range(1000, 1100):
        random_trace(seed, requests=25)
