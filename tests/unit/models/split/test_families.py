"""Every family of transformers that is served is divided between two ranks, or refused with the reason."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.support.divided_families import judge_divided
from tests.support.families import families, judge_apart

# Transformers zeroes its padding token's row when it loads it whole, and so that token's logits.
ZEROED: Final = "youtu"
# All sizes of these models are even.
REASONS: Final = (
    r"none of its layers can be: .+",
    r"its \S+ is stored in another form than its layers have",
    r"its checkpoint has tensors of other names than its layers",
    r"its embedding has another place, \S+",
    r"its embedding and its head are no plain matrices",
)


@pytest.mark.full
@pytest.mark.parametrize("family", sorted({*families()} - {ZEROED}))
def test_two_ranks_compute_what_one_computes_or_refuse(family: str) -> None:
    verdict = judge_apart(family, judge_divided)
    if verdict.outcome == "skipped":
        pytest.skip(verdict.reason)
    elif verdict.outcome == "refused":
        _, _, reason = verdict.reason.partition(": ")
        assert any(re.fullmatch(each, reason) for each in REASONS), verdict.reason
    else:
        assert (verdict.outcome, verdict.reason) == ("served", "")
