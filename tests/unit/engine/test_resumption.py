"""An answer that another engine began: its place in the queue, its clock, its ends and its blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llguidance import LLTokenizer

from serve_app.engine.grammar.constraint import Constraint
from serve_app.errors import EngineRefused, Overloaded
from serve_app.types import (
    Beam,
    ChoiceSoFar,
    EngineOutput,
    EngineRequest,
    FinishReason,
    SamplingParams,
    Timing,
)
from tests.support.fakes import Faults, greedy_tokens
from tests.support.grammars import EOS, fast, regex, tokens
from tests.unit.engine.test_engine import Bench
from tests.unit.engine.test_loop import running

__all__ = ["fast", "tokens"]

PROMPT = (1, 2, 3)
WHOLE = greedy_tokens(PROMPT, 6)


def so_far(count: int, *, finished: bool = False, timing: Timing | None = None) -> ChoiceSoFar:
    return ChoiceSoFar(token_ids=tuple(WHOLE[:count]), finished=finished, timing=timing)


@pytest.mark.parametrize("count", range(6))
def test_the_rest_is_what_the_first_engine_would_have_made(count: int) -> None:
    bench = Bench()
    bench.add("a", begun=(so_far(count),))
    bench.drain()
    assert bench.tokens["a", 0] == WHOLE[count:]
    assert bench.finish_of("a") is FinishReason.LENGTH


def test_finished_choices_are_not_made_again() -> None:
    bench = Bench()
    bench.add("a", n=3, begun=(so_far(6, finished=True), so_far(2), so_far(0)))
    bench.drain()
    assert bench.tokens == {("a", 1): WHOLE[2:], ("a", 2): WHOLE}


def test_an_answer_that_goes_on_is_admitted_to_a_full_queue_and_first() -> None:
    bench = Bench(settings={"max_sequences": 1, "max_waiting": 1})
    bench.add("running", max_tokens=4)
    bench.step()
    bench.add("waiting")
    with pytest.raises(Overloaded):
        bench.add("late")
    bench.add("moved", begun=(so_far(3),))
    with pytest.raises(Overloaded):  # as before: the moved answer has taken no place from anybody
        bench.add("late")
    while "moved" not in {key for key, _ in bench.ends}:
        bench.step()
    assert "waiting" not in {key for key, _ in bench.tokens}
    bench.drain()
    assert bench.tokens["moved", 0] == WHOLE[3:]
    assert bench.tokens["waiting", 0] == WHOLE


def test_an_aborted_answer_that_went_on_leaves_no_blocks() -> None:
    bench = Bench()
    bench.add("before", begun=(so_far(2),))
    bench.engine.abort("before")  # in the queue
    bench.add("after", n=2, begun=(so_far(2), so_far(0)))
    bench.step()
    bench.engine.abort("after")  # with blocks
    bench.drain()
    assert {end.finish for end in bench.ends.values()} == {FinishReason.ABORT}


def test_a_deadline_counts_from_here_and_times_from_the_first_replica() -> None:
    bench = Bench()
    bench.add("a", begun=(so_far(1),), age_s=40.0, timeout_s=5.0, max_tokens=50)
    bench.now += 4.9
    bench.step()
    assert not bench.ends
    bench.now += 0.2
    bench.drain()
    assert bench.error_of("a") == "DeadlineExceeded"


def test_times_span_the_whole_answer() -> None:
    bench = Bench()
    timing = Timing(queue_s=1.0, first_token_s=3.0)
    bench.add("a", n=2, timings=True, age_s=10.0, begun=(so_far(4, timing=timing), so_far(0)))
    outputs: list[EngineOutput] = []
    while bench.engine.has_work():
        bench.now += 0.5
        outputs += bench.step()
    began = 90.0
    told, new = (bench.ends["a", index].perf for index in (0, 1))
    assert told is not None
    assert new is not None
    assert (told.arrival_ns, told.first_scheduled_ns, told.first_token_ns) == (90e9, 91e9, 93e9)
    assert (new.arrival_ns, new.first_scheduled_ns, new.first_token_ns) == (90e9, 91e9, 100.5e9)
    first = {index: next(o for o in outputs if o.index == index) for index in (0, 1)}
    assert first[0].timing is None
    assert first[1].timing == Timing(queue_s=1.0, first_token_s=100.5 - began)
    assert first[0].steps[0].wait_s == 0.5  # since it is here: the last token's time is not known
    assert first[1].steps[0].wait_s == 10.5


@pytest.mark.parametrize(
    "fields",
    [
        {"begun": (so_far(6),)},  # all its tokens, and no end
        {"begun": (so_far(6, finished=True),)},  # nothing is left to do
        {"begun": (so_far(2), so_far(2))},  # more choices than asked for
        {"begun": (ChoiceSoFar(token_ids=(10**6,)),)},
        {"begun": (so_far(2),), "beam": Beam(width=2)},
    ],
)
def test_what_no_engine_can_have_made_is_refused(fields: dict[str, object]) -> None:
    bench = Bench()
    with pytest.raises(EngineRefused, match="cannot go on"):
        bench.add("a", **fields)
    assert not bench.engine.has_work()


def test_a_dead_engine_ends_the_open_choices_alone() -> None:
    request = EngineRequest(
        id="a",
        token_ids=PROMPT,
        n=3,
        sampling=SamplingParams(temperature=0.0, max_tokens=4000),
        begun=(ChoiceSoFar(finished=True), so_far(1), so_far(1)),
    )
    with running(Faults()) as (loop, receiver):
        loop.add(request)
        receiver.wait_tokens("a", 2)
        loop.stop(20.0)
        assert {receiver.wait_end("a", index).error is not None for index in (1, 2)} == {True}
        assert {output.index for output in receiver.outputs} == {1, 2}


def test_a_full_inbox_takes_an_answer_that_goes_on() -> None:
    request = EngineRequest(id="a", token_ids=PROMPT, sampling=SamplingParams(temperature=0.0, max_tokens=6))
    with running(max_sequences=1, max_waiting=0) as (loop, receiver):
        loop.add(replace(request, sampling=replace(request.sampling, max_tokens=2000)))
        receiver.wait_tokens("a", 1)
        with pytest.raises(Overloaded):
            loop.add(replace(request, id="b"))
        loop.add(replace(request, id="c", begun=(so_far(5),)))
        loop.abort("a")
        assert receiver.wait_end("c").finish is FinishReason.LENGTH


def test_the_rest_of_a_forced_run_is_owed(tokens: LLTokenizer) -> None:
    """Wherever a client's part ends inside of a run, the rest of it comes unsampled."""
    pattern = "(the quick brown fox|a lazy dog) (sleeps soundly|jumps)"
    base = Constraint.compile(regex(pattern), tokens)
    text = tokens.tokenize_str("the quick brown fox jumps")
    first = text[:1]
    run = base.fork().forced(first)
    assert len(run) > 2
    for count in range(len(run) + 1):
        output = [*first, *run[:count]]
        moved = base.go_on(output, forces=True)
        assert list(moved.owed) == run[count:]
        assert (moved.mask([*first, *run]) == base.fork().mask([*first, *run])).all()
        sampled = base.go_on(output, forces=False)
        assert sampled.owed == ()
    assert EOS not in run
