"""Every family of causal language models that transformers has is served as it computes it, or refused."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from tests.support.checkpoints import CHECKPOINTS, checkpoint_row
from tests.support.families import Verdict, class_name, families, judge, judge_apart, table_row
from tests.support.models_tables import PAGE, documented, rewritten

DOCUMENTED = documented(PAGE.read_text("utf-8"))
# One of each answer.
QUICK_CHECKPOINTS = ("LiquidAI/LFM2.5-1.2B-Instruct", "deepseek-ai/DeepSeek-V4-Flash", "openai/gpt-oss-20b")
ALWAYS = ("hunyuan_v1_moe", "longcat_flash", "roberta (decoder)", "gemma3", "git")
# The same handful on every run of one release of transformers.
QUICK = (*ALWAYS, *random.Random(20).sample(sorted(set(families()) - set(ALWAYS)), 12))


@pytest.fixture
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(verdict: Verdict) -> None:
    assert verdict.outcome in ("served", "refused"), verdict.reason
    assert DOCUMENTED.get(verdict.family) == table_row(verdict)


@pytest.mark.parametrize("family", QUICK)
@pytest.mark.usefixtures("_one_thread")
def test_a_family_is_served_as_transformers_computes_it_or_refused(family: str) -> None:
    check(judge(family))


@pytest.mark.full
@pytest.mark.parametrize("family", families())
def test_each_family_is_served_as_transformers_computes_it_or_refused(family: str) -> None:
    check(judge_apart(family))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK_CHECKPOINTS else pytest.mark.full) for name in CHECKPOINTS],
)
def test_a_checkpoint_takes_the_memory_that_the_page_says(name: str) -> None:
    assert DOCUMENTED.get(name) == checkpoint_row(name)


def test_the_page_of_models_has_every_family_and_checkpoint() -> None:
    missing = [name for name in (*CHECKPOINTS, *families()) if name not in DOCUMENTED]
    assert not missing, "write their rows with `python -m tests.support.models_tables NAME ...`"
    for family in families():
        assert f"| {class_name(family)} |" in DOCUMENTED[family]


def test_the_tables_of_the_page_are_in_order() -> None:
    assert rewritten(PAGE.read_text("utf-8"), {}) == PAGE.read_text("utf-8")


@pytest.mark.full
def test_an_error_is_neither() -> None:
    verdict = judge_apart("no family at all")
    assert verdict.outcome == "failed"
    with pytest.raises(AssertionError):
        check(verdict)
