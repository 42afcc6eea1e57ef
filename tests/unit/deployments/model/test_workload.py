"""What a replica reports of an engine whose steps take a known time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.deployments.model.scaling import CACHE_USE, MAX_SEQUENCES, PROMPT_WAIT, SEQUENCES
from serve_app.deployments.model.workload import Workload
from serve_app.types import EngineStats


class Seen:
    """A workload, and the clock it reads."""

    def __init__(self) -> None:
        self.now = 50.0
        self.workload = Workload(clock=lambda: self.now)

    def report(self, after: float = 0.0, **stats: int) -> dict[str, float]:
        self.now += after
        return self.workload.report(replace(EngineStats(max_sequences=64, blocks_total=100), **stats))


def test_sequences_and_cache_are_as_the_engine_says() -> None:
    report = Seen().report(running=7, waiting=3, blocks_used=25)
    assert report == {SEQUENCES: 10.0, MAX_SEQUENCES: 64.0, CACHE_USE: 0.25, PROMPT_WAIT: 0.0}


def test_an_engine_that_has_not_said_anything_yet_is_empty() -> None:
    assert Workload().report(EngineStats(max_sequences=64))[CACHE_USE] == 0.0


def test_prompts_wait_for_as_long_as_their_tokens_take() -> None:
    seen = Seen()
    assert seen.report(waiting_tokens=9000, steps=10)[PROMPT_WAIT] == 0.0  # nothing is measured yet
    report = seen.report(after=2.0, waiting_tokens=5000, steps=14, computed_tokens=4000)
    assert report[PROMPT_WAIT] == pytest.approx(5000 * 2.0 / 4000)
    report = seen.report(after=2.0, waiting_tokens=3000, steps=16, computed_tokens=6000)
    assert report[PROMPT_WAIT] == pytest.approx(3000 * 2.0 / 2000)


def test_time_without_waiting_prompts_is_not_counted() -> None:
    seen = Seen()
    seen.report(waiting_tokens=9000, steps=0)
    seen.report(after=1.0, waiting_tokens=100, steps=2, computed_tokens=2000)
    seen.report(after=1.0, waiting_tokens=0, steps=90, computed_tokens=2100)  # decodes: quick
    report = seen.report(after=1.0, waiting_tokens=4000, steps=180, computed_tokens=2100)
    assert report[PROMPT_WAIT] == pytest.approx(4000 * 1.0 / 2000)
    report = seen.report(after=1.0, waiting_tokens=4000, steps=181, computed_tokens=3100)
    assert report[PROMPT_WAIT] == pytest.approx(4000 * 1.0 / 1000)


def test_steps_that_compute_no_prompt_token_tell_nothing_of_what_one_takes() -> None:
    seen = Seen()
    seen.report(waiting_tokens=1000, steps=0)
    seen.report(after=1.0, waiting_tokens=500, steps=1, computed_tokens=500)
    report = seen.report(after=9.0, waiting_tokens=500, steps=40, computed_tokens=500)  # the batch is full
    assert report[PROMPT_WAIT] == pytest.approx(500 * 1.0 / 500)
    report = seen.report(after=1.0, waiting_tokens=250, steps=41, computed_tokens=750)
    assert report[PROMPT_WAIT] == pytest.approx(250 * 1.0 / 250)


def test_a_step_longer_than_the_time_between_reports_is_measured_when_it_ends() -> None:
    seen = Seen()
    for _ in range(3):
        assert seen.report(after=1.0, waiting_tokens=6000, steps=5)[PROMPT_WAIT] == 0.0
    report = seen.report(after=1.0, waiting_tokens=5000, steps=6, computed_tokens=1000)
    assert report[PROMPT_WAIT] == pytest.approx(5000 * 3.0 / 1000)
