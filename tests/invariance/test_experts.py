"""Mixtures of experts: the logits of transformers, and the same bits alone and in crowds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from serve_app.engine.weights.formats import FORMATS
from tests.support.mixtures import alone, in_crowd, mixture, runner_of, texts

FAMILIES = (
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "ernie4_5_moe",
    "glm4_moe",
    "gpt_oss",
    "granitemoe",
    "hunyuan_v1_moe",
    "jetmoe",
    "longcat_flash",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
)
OTHERS = ("gpt2", "afmoe", "gemma4_text", "flex_olmo", "granitemoeshared")


@pytest.fixture(params=[1, 2], ids=lambda count: f"{count} threads")
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", FAMILIES + OTHERS)
def test_logits_are_those_of_transformers_and_the_same_in_any_crowd(family: str) -> None:
    check(family, seed=0, crowds=1)


@pytest.mark.full
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("family", FAMILIES + OTHERS)
def test_logits_are_the_same_in_many_crowds(family: str, seed: int) -> None:
    check(family, seed=seed, crowds=6)


def check(family: str, *, seed: int, crowds: int) -> None:
    rng = random.Random(seed)
    model = mixture(family)
    wanted = texts(6, rng)
    with torch.inference_mode():
        theirs = [model(torch.tensor([text]), use_cache=False).logits[0] for text in wanted]
    runner = runner_of(model)
    lone = [alone(runner, text) for text in wanted]
    for got, want in zip(lone, theirs, strict=True):
        assert float((got - want).abs().max()) <= 1e-4 * max(1.0, float(want.abs().max()))
    for _ in range(crowds):
        for got, want in zip(in_crowd(runner, wanted, rng), lone, strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_quantised_experts_keep_to_themselves(family: str, kind: str) -> None:
    rng = random.Random(2)
    runner = runner_of(mixture(family), FORMATS[kind])
    wanted = texts(4, rng)
    lone = [alone(runner, text) for text in wanted]
    for got, want in zip(in_crowd(runner, wanted, rng), lone, strict=True):
        assert torch.equal(got, want)
