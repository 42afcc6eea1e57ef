"""What a replica reports of an engine whose steps take a known time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_app.deployments.model.scaling import CACHE_USE, MAX_SEQUENCES, PROMPT_WAIT, SEQUENCES
from serve_app.deployments.model.workload import Workload
from serve_app.types import EngineStats

STEP_TOKENS = 1000


class Seen:
    """A workload, and the clock it reads."""

    def __init__(self) -> None:
        self.now = 50.0
        self.workload = Workload(STEP_TOKENS, clock=lambda: self.now)

    def report(self, after: float = 0.0, **stats: int) -> dict[str, float]:
        self.now += after
        return self.workload.report(replace(EngineStats(max_sequences=64, blocks_total=100), **stats))


def test_sequences_and_cache_are_as_the_engine_says() -> None:
    report = Seen().report(running=7, waiting=3, blocks_used=25)
    assert report == {SEQUENCES: 10.0, MAX_SEQUENCES: 64.0, CACHE_USE: 0.25, PROMPT_WAIT: 0.0}


def test_an_engine_that_has_not_said_anything_yet_is_empty() -> None:
    assert Workload(STEP_TOKENS).report(EngineStats(max_sequences=64))[CACHE_USE] == 0.0


def test_prompts_wait_for_the_full_steps_they_need() -> None:
    seen = Seen()
    assert seen.report(waiting_tokens=9000, steps=10)[PROMPT_WAIT] == 0.0  # steps are not measured yet
    assert seen.report(after=2.0, waiting_tokens=5000, steps=14)[PROMPT_WAIT] == pytest.approx(5 * 0.5)
    assert seen.report(after=2.0, waiting_tokens=3000, steps=16)[PROMPT_WAIT] == pytest.approx(3 * 1.0)


def test_steps_without_waiting_prompts_are_not_taken_for_full_ones() -> None:
    seen = Seen()
    seen.report(waiting_tokens=9000, steps=0)
    seen.report(after=1.0, waiting_tokens=100, steps=2)
    seen.report(after=1.0, waiting_tokens=0, steps=90)  # decodes: quick
    assert seen.report(after=1.0, waiting_tokens=4000, steps=180)[PROMPT_WAIT] == pytest.approx(4 * 0.5)
    assert seen.report(after=1.0, waiting_tokens=4000, steps=181)[PROMPT_WAIT] == pytest.approx(4 * 1.0)


def test_a_step_longer_than_the_time_between_reports_is_measured_when_it_ends() -> None:
    seen = Seen()
    for _ in range(3):
        assert seen.report(after=1.0, waiting_tokens=6000, steps=5)[PROMPT_WAIT] == 0.0
    assert seen.report(after=1.0, waiting_tokens=5000, steps=6)[PROMPT_WAIT] == pytest.approx(5 * 3.0)
