"""A small choice of the suites of this folder, on models that two ranks share.

`pytest tests/invariance --tensor-parallel 2` runs all of them so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.invariance import test_experts, test_mixed_rows, test_resumed_rows, test_state_histories
from tests.invariance.test_mixed_rows import tiny_engines
from tests.invariance.test_state_histories import Asked, History
from tests.support.engine_answers import OUTPUT
from tests.support.several_ranks import divided_among


@pytest.fixture(autouse=True)
def _two_ranks() -> Iterator[None]:
    with divided_among(2):
        yield


def test_rows_in_a_mix_are_answered_as_alone(folder: Path) -> None:
    test_mixed_rows.check(tiny_engines(folder), "few blocks, odd chunks", 12, seed=3)


def test_rows_go_on_in_another_engine(folder: Path) -> None:
    test_resumed_rows.check(tiny_engines(folder), "overlapped", 8, seed=5, ngram_draft=3)


def test_experts_keep_to_themselves() -> None:
    test_experts.check("qwen3_moe", seed=0, crowds=1)


def test_a_history_of_states() -> None:
    kept = test_state_histories.alone, test_state_histories.fresh
    for each in kept:
        each.cache_clear()  # of answers by one rank
    try:
        first = Asked(17, 5, n=3, steps=4)
        others = Asked(17, 31, adapter=True, draft=3), Asked(32, 1, aborted=True, steps=2)
        choices = Asked(17, 5, n=3, beams=3), Asked(17, 2, n=3, sampled=True, draft=OUTPUT)
        asked = (first, *others, *choices)
        test_state_histories.check("qwen3_5_text", History(asked * 2, 40, 20, 3, True, False))
    finally:
        for each in kept:
            each.cache_clear()
