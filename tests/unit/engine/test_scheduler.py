"""Who runs next, with integers only: no runner, no tokens that mean anything."""

from __future__ import annotations

import random

from serve_app.engine.cache.block_tables import BlockTables
from serve_app.engine.cache.blocks import BlockPool
from serve_app.engine.pace import Pace
from serve_app.engine.scheduler import MAX_PROMPT_LOGIT_ROWS, Plan, Scheduler
from serve_app.engine.sequence import BeamSet, Sequence, Status
from serve_app.types import PositionLogprobs, SamplingParams


class Bench:
    """A scheduler, and a commit that appends one token to whatever reached its end."""

    def __init__(
        self, *, blocks: int = 64, sequences: int = 8, tokens: int = 16, block_size: int = 4
    ) -> None:
        self.tables = BlockTables(BlockPool(blocks, block_size), prefix_cache=False)
        self.scheduler = Scheduler(self.tables, Pace(tokens), max_sequences=sequences, max_step_tokens=tokens)
        self.arrivals = 0

    def add(self, length: int, *, priority: int = 0, prompt_logprobs: int | None = None) -> Sequence:
        made = Sequence(
            str(self.arrivals),
            0,
            length,
            [1] * length,
            SamplingParams(),
            0,
            num_prompt_logprobs=prompt_logprobs,
            order=(-priority, self.arrivals, 0),
        )
        self.arrivals += 1
        self.scheduler.add(made)
        return made

    def step(self) -> Plan:
        plan = self.scheduler.schedule()
        for chunk in plan.chunks:
            ends = chunk.samples
            wanted = min(chunk.end, chunk.sequence.prompt_len - 1) - chunk.first_logit
            if chunk.sequence.wanted_from is not None:
                chunk.sequence.prompt_logprobs += [PositionLogprobs(1, 0.0)] * wanted
            chunk.sequence.num_computed = chunk.end
            if ends:
                chunk.sequence.token_ids.append(1)
        self.tables.check_integrity([*self.scheduler.running, *self.scheduler.waiting])
        return plan


def shape(plan: Plan) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.length) for chunk in plan.chunks]


def test_decodes_come_first_and_prompts_take_what_is_left_of_the_budget() -> None:
    bench = Bench(tokens=16)
    bench.add(3)
    bench.step()
    bench.add(30)
    assert shape(bench.step()) == [("0", 3, 1), ("1", 0, 15)]
    assert shape(bench.step()) == [("0", 4, 1), ("1", 15, 15)]
    assert shape(bench.step()) == [("0", 5, 1), ("1", 30, 1)]


def test_a_long_prompt_is_cut_into_chunks_and_only_the_last_wants_logits() -> None:
    bench = Bench(tokens=16)
    bench.add(20)
    first, second = bench.step().chunks[0], bench.step().chunks[0]
    assert (first.length, first.num_logits) == (16, 0)
    assert (second.length, second.num_logits) == (4, 1)


def test_the_budget_left_by_a_prompt_goes_to_the_next_one() -> None:
    bench = Bench(tokens=16)
    bench.add(10)
    bench.add(10)
    assert shape(bench.step()) == [("0", 0, 10), ("1", 0, 6)]


def test_no_more_sequences_run_than_configured() -> None:
    bench = Bench(sequences=2)
    for _ in range(3):
        bench.add(2)
    bench.step()
    assert (len(bench.scheduler.running), len(bench.scheduler.waiting)) == (2, 1)


def test_a_larger_priority_starts_earlier_and_equal_ones_start_in_order_of_arrival() -> None:
    bench = Bench(sequences=1)
    low, high, also_high = bench.add(2), bench.add(2, priority=5), bench.add(2, priority=5)
    started = []
    for _ in range(3):
        bench.step()
        (running,) = bench.scheduler.running
        started.append(running)
        bench.scheduler.remove(running)
    assert started == [high, also_high, low]


def test_a_more_urgent_prompt_overtakes_the_chunks_of_a_running_one() -> None:
    bench = Bench(tokens=16)
    bench.add(60)
    bench.step()
    bench.add(8, priority=1)
    assert shape(bench.step()) == [("1", 0, 8), ("0", 16, 8)]


def test_the_youngest_gives_way_when_blocks_run_out_and_comes_back_first() -> None:
    bench = Bench(blocks=4, sequences=3)
    old, young = bench.add(7), bench.add(7)
    bench.step()
    late = bench.add(1)
    bench.step()
    plan = bench.step()
    assert plan.preempted == [young]
    assert shape(plan) == [("0", 8, 1)]
    assert young.status is Status.WAITING
    assert young.block_table == []
    assert bench.scheduler.waiting == [young, late]
    bench.scheduler.remove(old)
    assert shape(bench.step())[0] == ("1", 0, 9), "prompt and output are computed again"


def test_the_least_urgent_gives_way_even_when_it_is_the_oldest() -> None:
    bench = Bench(blocks=4)
    low = bench.add(7)
    bench.add(7, priority=1)
    bench.step()
    bench.step()
    assert bench.step().preempted == [low]


def test_the_sequence_that_is_last_in_order_gives_way_itself() -> None:
    bench = Bench(blocks=4)
    bench.add(5)
    last = bench.add(8)
    bench.step()
    plan = bench.step()
    assert plan.preempted == [last]
    assert shape(plan) == [("0", 5, 1)]


def test_nothing_is_admitted_in_a_step_that_had_to_preempt() -> None:
    bench = Bench(blocks=4)
    bench.add(7)
    bench.add(7)
    bench.step()
    bench.step()
    tiny = bench.add(1)
    plan = bench.step()
    assert plan.preempted
    assert plan.admitted == []
    assert tiny.status is Status.WAITING


def test_the_oldest_always_advances_however_small_the_cache() -> None:
    bench = Bench(blocks=4)
    everyone = [bench.add(5) for _ in range(6)]
    for _ in range(300):
        before = min((s for s in everyone if s.status is not Status.FINISHED), key=lambda s: s.order)
        progress = (before.num_computed, before.num_tokens)
        bench.step()
        assert (before.num_computed, before.num_tokens) > progress
        if before.num_tokens == 16:
            bench.scheduler.remove(before)
            if before is everyone[-1]:
                break
    assert all(s.status is Status.FINISHED for s in everyone)


def test_an_uncommitted_step_is_scheduled_again_unchanged() -> None:
    bench = Bench()
    bench.add(6)
    bench.add(9)
    first, second = bench.scheduler.schedule(), bench.scheduler.schedule()
    assert shape(first) == shape(second)


def test_prompt_logprobs_want_a_row_for_every_prompt_token_once() -> None:
    bench = Bench(tokens=16)
    bench.add(20, prompt_logprobs=0)
    rows = [chunk.num_logits for _ in range(3) for chunk in bench.step().chunks]
    assert rows == [16, 4, 1]


def test_prompt_logprobs_bound_the_rows_of_a_step() -> None:
    bench = Bench(blocks=1024, tokens=4096)
    bench.add(1000, prompt_logprobs=0)
    bench.add(1000, prompt_logprobs=0)
    bench.add(1000)
    plan = bench.step()
    assert shape(plan) == [("0", 0, MAX_PROMPT_LOGIT_ROWS), ("2", 0, 1000)]


def test_a_sequence_can_be_removed_in_every_state() -> None:
    bench = Bench()
    running, waiting = bench.add(3), bench.add(3)
    bench.scheduler.remove(waiting)
    bench.step()
    bench.scheduler.remove(running)
    bench.scheduler.remove(running)
    assert bench.scheduler.running == bench.scheduler.waiting == []
    bench.tables.check_integrity([])


# --- beams ----------------------------------------------------------------------------


def add_beams(bench: Bench, length: int, places: int, priority: int = 0) -> BeamSet:
    leader = bench.add(length, priority=priority)
    leader.beam_set = BeamSet(places, [leader])
    return leader.beam_set


def fork_all(bench: Bench, beams: BeamSet) -> None:
    """The leader has computed its prompt and got a token: the others start from there."""
    leader = beams.members[0]
    for index in range(1, beams.places):
        order = (*leader.order[:2], index)
        tokens = list(leader.token_ids)
        child = Sequence(
            leader.request_id, index, leader.prompt_len, tokens, SamplingParams(), 0, order=order
        )
        child.beam_set = beams
        bench.scheduler.fork(leader, child)
    bench.scheduler.check_integrity()


def test_a_beam_set_keeps_its_places_while_its_prompt_is_computed() -> None:
    bench = Bench(sequences=5, tokens=16)
    add_beams(bench, 4, places=4)
    bench.add(2)
    bench.add(2)
    assert shape(bench.step()) == [("0", 0, 4), ("1", 0, 2)]
    assert len(bench.scheduler.waiting) == 1


def test_a_beam_set_waits_until_all_its_places_are_free() -> None:
    bench = Bench(sequences=4, tokens=16)
    first = bench.add(2)
    add_beams(bench, 4, places=4)
    assert shape(bench.step()) == [("0", 0, 2)]
    bench.scheduler.remove(first)
    assert shape(bench.step()) == [("1", 0, 4)]


def test_a_step_computes_all_beams_of_a_request_or_none() -> None:
    bench = Bench(tokens=4)
    older = [bench.add(1) for _ in range(2)]
    bench.step()
    beams = add_beams(bench, 1, places=3)
    bench.step()
    fork_all(bench, beams)
    assert shape(bench.step()) == [("0", 2, 1), ("1", 2, 1)], "two of three would fit"
    bench.scheduler.remove(older[0])
    assert [name for name, _, _ in shape(bench.step())] == ["1", "2", "2", "2"]


def test_a_beam_set_gives_way_and_comes_back_whole() -> None:
    bench = Bench(blocks=9, sequences=5, tokens=16)
    first = bench.add(12)
    beams = add_beams(bench, 4, places=3)
    bench.step()
    fork_all(bench, beams)
    while beams.members[0].status is Status.RUNNING:
        bench.step()
        bench.scheduler.check_integrity()
    assert [m.status for m in beams.members] == [Status.WAITING] * 3
    length = beams.members[0].num_tokens
    bench.scheduler.remove(first)
    bench.step()
    bench.scheduler.check_integrity()
    assert [m.status for m in beams.members] == [Status.RUNNING] * 3
    while beams.members[0].num_tokens == length:
        bench.step()
    assert [m.num_tokens for m in beams.members] == [length + 1] * 3


def test_a_beam_set_that_is_first_advances_in_a_cache_that_just_holds_it() -> None:
    bench = Bench(blocks=9, sequences=5, tokens=16)
    beams = add_beams(bench, 4, places=3, priority=1)
    bench.add(3)
    bench.step()
    fork_all(bench, beams)
    for _ in range(7):
        bench.step()
        bench.scheduler.check_integrity()
    assert [m.num_tokens for m in beams.members] == [4 + 8] * 3


# --- prompts beside each other --------------------------------------------------------


def test_a_short_prompt_does_not_wait_for_the_whole_of_a_long_one() -> None:
    bench = Bench(blocks=1024, tokens=64)
    bench.add(2000)
    bench.step()
    bench.add(30)
    assert shape(bench.step()) == [("0", 64, 34), ("1", 0, 30)]


def test_prompts_of_one_length_are_computed_one_after_the_other() -> None:
    bench = Bench(blocks=1024, tokens=64)
    for _ in range(3):
        bench.add(96)
    assert [shape(bench.step()) for _ in range(2)] == [
        [("0", 0, 64)],
        [("0", 64, 32), ("1", 0, 32)],
    ]


def test_no_prompt_takes_more_than_twice_the_steps_that_the_work_before_it_needs() -> None:
    """Random arrivals of long and short prompts: neither hold the others up for longer."""
    rng, budget = random.Random(3), 64
    bench = Bench(blocks=700, block_size=128, sequences=64, tokens=budget)
    left: dict[Sequence, float] = {}  # steps in which a prompt must be computed
    arriving = 300
    while arriving or left:
        if arriving and rng.random() < 0.4 and len(left) < 60:
            arriving -= 1
            new = bench.add(rng.choice([5, 20, 60, 60, 300, 1500]))
            work = sum(s.num_tokens - s.num_computed for s in left) + new.num_tokens
            left[new] = 2 * work / budget + 1
        bench.step()
        for prompt in list(left):
            left[prompt] -= 1
            if prompt.num_tokens > prompt.prompt_len:  # it has its first token
                bench.scheduler.remove(prompt)
                assert left.pop(prompt) >= 0
