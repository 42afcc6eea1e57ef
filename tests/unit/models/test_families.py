"""Every family of causal language models that transformers has is served as it computes it, or refused."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.families import Verdict, class_name, families, judge, judge_apart, table_row

DOC = Path(__file__).parents[3] / "docs" / "models.md"
ALWAYS = ("hunyuan_v1_moe", "longcat_flash", "roberta (decoder)", "gemma3", "git")
# The same handful on every run of one release of transformers.
QUICK = (*ALWAYS, *random.Random(20).sample(sorted(set(families()) - set(ALWAYS)), 12))


def documented() -> dict[str, str]:
    """The rows of the table in docs/models.md by family."""
    rows = re.findall(r"^(\| `([^`]+)` \| \w+ \| (?:served|refused: .+) \|)$", DOC.read_text("utf-8"), re.M)
    return {family: row for row, family in rows}


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(verdict: Verdict) -> None:
    assert verdict.outcome in ("served", "refused"), verdict.reason
    assert documented().get(verdict.family) == table_row(verdict)


@pytest.mark.parametrize("family", QUICK)
@pytest.mark.usefixtures("_one_thread")
def test_a_family_is_served_as_transformers_computes_it_or_refused(family: str) -> None:
    check(judge(family))


@pytest.mark.full
@pytest.mark.parametrize("family", families())
def test_each_family_is_served_as_transformers_computes_it_or_refused(family: str) -> None:
    check(judge_apart(family))


def test_the_page_of_models_has_every_family() -> None:
    rows = documented()
    missing = [family for family in families() if family not in rows]
    assert not missing, "print their rows with `python -m tests.support.families_table FAMILY ...`"
    for family in families():
        assert f"| {class_name(family)} |" in rows[family]


@pytest.mark.full
def test_an_error_is_neither() -> None:
    verdict = judge_apart("no family at all")
    assert verdict.outcome == "failed"
    with pytest.raises(AssertionError):
        check(verdict)
