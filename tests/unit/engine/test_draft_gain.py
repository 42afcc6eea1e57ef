"""Drafts that must pay: what their rows cost, what they promise, and that measurements are renewed."""

from __future__ import annotations

import pytest

from serve_app.engine.draft_gain import REFRESH, RETRY, DraftGain
from serve_app.engine.sequence import Forecast

SURE = Forecast(0.99, 0.99, 31)
UNLIKELY = Forecast(0.1, 0.3, 31)


def gain_of(decodes: int, costs: dict[int, float]) -> DraftGain:
    """A gain that has measured what steps with so many draft rows take, as multiples of one without."""
    gain = DraftGain()
    gain.observe(decodes, 0, 1.0)
    for drafted, cost in costs.items():
        for _ in range(30):
            gain.observe(decodes, drafted, cost)
            gain.observe(decodes, 0, 1.0)
    return gain


def test_nothing_is_drafted_before_a_step_without_drafts_was_measured() -> None:
    gain = DraftGain()
    assert gain.lengths(1, [SURE], 128) == [0]
    gain.observe(1, 0, 1.0)
    assert gain.lengths(1, [SURE], 128)[0] > 0


@pytest.mark.parametrize(
    ("costs", "forecast", "length"),
    [
        ({1: 1.02, 3: 1.05, 7: 1.1, 15: 1.2, 31: 1.4}, SURE, 31),
        ({1: 1.02, 3: 1.05, 7: 1.1, 15: 1.2, 31: 3.0}, SURE, 15),  # the next tile of rows is dear
        ({1: 1.02, 3: 1.05, 7: 1.9, 15: 3.8, 31: 7.6}, Forecast(0.6, 0.8, 31), 3),
        ({1: 1.02, 3: 1.05, 7: 1.1, 15: 1.2, 31: 1.4}, Forecast(0.9, 0.9, 2), 2),  # no more is proposed
        ({1: 1.2, 3: 1.6, 7: 2.0, 15: 3.0, 31: 5.0}, UNLIKELY, 0),
        ({1: 1.02, 3: 1.05, 7: 1.1, 15: 1.2, 31: 1.4}, Forecast(0.0, 0.0, 31), 0),
    ],
)
def test_a_draft_is_as_long_as_it_pays(costs: dict[int, float], forecast: Forecast, length: int) -> None:
    assert gain_of(1, costs).lengths(1, [forecast], 128) == [length]


def test_the_likeliest_tokens_of_all_sequences_come_first() -> None:
    gain = gain_of(4, {4: 1.1, 12: 3.0, 28: 5.0, 60: 9.0})
    likely, fading = Forecast(0.95, 0.9, 31), Forecast(0.9, 0.5, 31)
    lengths = gain.lengths(4, [UNLIKELY, likely, UNLIKELY, fading], 128)
    assert lengths == [0, 3, 0, 1]


def test_the_room_of_a_step_bounds_its_drafts() -> None:
    gain = gain_of(1, {1: 1.01, 3: 1.01, 7: 1.01, 15: 1.01, 31: 1.01})
    assert gain.lengths(1, [SURE], 5) == [5]


def test_a_step_without_drafts_comes_now_and_then_and_is_measured() -> None:
    gain = gain_of(1, {31: 1.2})
    for _ in range(REFRESH):
        assert gain.lengths(1, [SURE], 128) == [31]
        gain.observe(1, 31, 1.2)
    assert gain.lengths(1, [SURE], 128) == [0]
    gain.observe(1, 0, 1.0)
    assert gain.lengths(1, [SURE], 128) == [31]


def test_a_cost_that_seemed_too_high_is_measured_again() -> None:
    likely = Forecast(0.8, 0.5, 1)
    gain = gain_of(1, {1: 1.9})
    for _ in range(RETRY):
        assert gain.lengths(1, [likely], 128) == [0]
        gain.observe(1, 0, 1.0)
    assert gain.lengths(1, [likely], 128) == [1]
    gain.observe(1, 1, 1.9)
    gain.observe(1, 0, 1.0)
    assert gain.lengths(1, [likely], 128) == [0]  # still too high


def test_one_very_slow_step_does_not_end_drafts() -> None:
    gain = gain_of(1, {31: 1.2})
    gain.observe(1, 31, 50.0)
    gain.observe(1, 0, 1.0)
    assert gain.lengths(1, [SURE], 128) == [31]
