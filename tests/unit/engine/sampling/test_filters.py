"""Filters against transformers' warpers, and the draw against the distribution they leave."""

import math
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from serve_app.engine.sampling.filters import FilterParams, RowParams, draw_all, draw_top_k, draw_top_p
from serve_app.engine.sampling.noise import uniform
from serve_app.engine.sampling.sampler import _draw_of
from serve_app.types import SamplingParams

torch.set_num_threads(1)
DRAWS = 4000

CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 5},
    {"top_k": 2, "temperature": 2.0},
    {"top_k": 299},
    {"top_p": 0.7},
    {"top_p": 0.999},
    {"top_p": 1e-9},
    {"typical_p": 0.6},
    {"typical_p": 0.95, "temperature": 1.4},
    {"top_k": 40, "top_p": 0.8},
    {"top_p": 0.9, "min_p": 0.05},
    {"top_p": 0.9, "typical_p": 0.7},
    {"min_p": 0.02, "typical_p": 0.7},
    {"temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9},
]


def reference(x: torch.Tensor, p: SamplingParams) -> torch.Tensor:
    """The distribution [V] that transformers' warpers leave, in the order of the specification."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(p.temperature)])
    if p.top_k:
        warpers.append(TopKLogitsWarper(p.top_k))
    if p.top_p < 1:
        warpers.append(TopPLogitsWarper(p.top_p))
    if p.min_p:
        warpers.append(MinPLogitsWarper(p.min_p))
    if p.typical_p < 1:
        warpers.append(TypicalLogitsWarper(p.typical_p))
    scores: torch.Tensor = warpers(torch.zeros(1, 1, dtype=torch.int64), x.clone())
    return torch.softmax(scores.double(), -1)[0]


def draw(x: torch.Tensor, p: SamplingParams, noise: torch.Tensor) -> torch.Tensor:
    """One id for each value of `noise`, all from the row x [1, V]."""
    rows = noise.numel()

    top_k = p.top_k or x.shape[1]
    params = [RowParams(p.temperature, top_k, p.top_p, p.min_p, p.typical_p, u) for u in noise.tolist()]
    settings = FilterParams.of(params, torch.tensor(params, dtype=torch.float64))
    chosen = _draw_of(p, x.shape[1])[0]
    assert chosen in (draw_all, draw_top_k, draw_top_p)
    return chosen(x.repeat(rows, 1), settings)


@pytest.mark.parametrize("width", [300, 700])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_even_noise_draws_the_distribution_of_transformers(case: dict[str, Any], width: int) -> None:
    x = torch.randn(1, width, generator=torch.Generator().manual_seed(width)) * 2
    params = SamplingParams(**case)
    expected = reference(x, params)
    # Noise on a regular grid: every count is within one or two of its share, so nothing can flake.
    noise = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    counts = torch.bincount(draw(x, params, noise), minlength=width)
    assert not counts[expected == 0].any()
    assert float((counts - expected * DRAWS).abs().max()) < 1.1


def test_seeded_draws_pass_a_chi_square_test() -> None:
    x = torch.randn(1, 40, generator=torch.Generator().manual_seed(1))
    noise = torch.tensor([uniform(11, 0, i) for i in range(DRAWS)], dtype=torch.float64)
    for case in ({}, {"top_k": 10}, {"top_p": 0.8}):
        params = SamplingParams(**case)
        expected = reference(x, params) * DRAWS
        counts = torch.bincount(draw(x, params, noise), minlength=40)
        kept = expected > 0
        statistic = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
        freedom = int(kept.sum()) - 1
        assert abs(statistic - freedom) / math.sqrt(2 * freedom) < 4


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e30])
def test_extreme_temperatures_stay_inside_the_row(case: dict[str, Any], temperature: float) -> None:
    x = torch.randn(1, 300, generator=torch.Generator().manual_seed(3)) * 1e3
    x[0, 10:20] = float("-inf")
    params = SamplingParams(**{**case, "temperature": temperature})
    ids = draw(x, params, torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64))
    assert torch.isfinite(x[0, ids]).all()
    if temperature < 1:
        assert ids.tolist() == [int(x.argmax())] * 3


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_ends_of_the_noise_never_draw_an_impossible_token(case: dict[str, Any]) -> None:
    x = torch.full((1, 300), float("-inf"))
    x[0, 130] = 0.0
    ids = draw(x, SamplingParams(**case), torch.tensor([0.0, 2**-53, 0.5, 1 - 2**-53], dtype=torch.float64))
    assert ids.tolist() == [130] * 4


def test_top_k_keeps_exactly_k_of_equal_tokens_the_lowest_ids() -> None:
    noise = (torch.arange(60, dtype=torch.float64) + 0.5) / 60
    ids = draw(torch.zeros(1, 5000), SamplingParams(top_k=3), noise)
    assert sorted(set(ids.tolist())) == [0, 1, 2]


def test_a_nucleus_as_wide_as_the_vocabulary_is_found() -> None:
    noise = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    ids = draw(torch.zeros(1, 10_000), SamplingParams(top_p=0.9), noise)
    assert 8900 <= int(ids.max()) < 9010
