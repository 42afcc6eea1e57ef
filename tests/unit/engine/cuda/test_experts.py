"""Experts by one product on a GPU: in Triton's interpreter where there is no device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional

from serve_app.engine.cuda.experts.grouped import MANY, Pairs, group_experts, has_grouped
from serve_app.engine.experts.gate import Gate, interleaved
from serve_app.engine.weights.decoding import Form
from serve_app.engine.weights.gpu_codes import CODES
from tests.support.codes import grouped
from tests.support.mixtures import mixture
from tests.support.triton_interpreter import LONG

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, SHARE, INPUTS, OUTPUTS = 5, 2, 40, 72  # neither size is a multiple of a tile's
CLAMPED = Gate(limit=2.0, alpha=1.702, added=1.0)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def numbers(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def reference(
    x: torch.Tensor, chosen: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None, gate: Gate | None
) -> torch.Tensor:
    """[P, N] in float64, pair by pair."""
    found = []
    for pair, expert in enumerate(chosen.tolist()):
        row = functional.linear(x[pair // SHARE].double(), matrix[expert].double())
        row = row if bias is None else row + bias[expert].double()
        found.append(row if gate is None else gate(row[None])[0])
    return torch.stack(found)


CHOICES = {
    "one row": torch.tensor([3, 1]),
    "one expert": torch.full((40,), 2),
    "uneven, and two without rows": torch.tensor([4, 4, 0, 4, 4, 0, 4, 4, 4, 2] + [4] * 20),
}


@pytest.mark.parametrize("chosen", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize(
    ("gate", "in_turn", "transposed", "biased"),
    [
        (None, False, False, False),
        (Gate(), False, False, False),
        (Gate(gelu=True), False, True, False),
        (CLAMPED, True, True, True),
    ],
)
def test_each_pair_is_multiplied_by_its_expert(
    chosen: torch.Tensor, gate: Gate | None, in_turn: bool, transposed: bool, biased: bool
) -> None:
    x, matrix = numbers(len(chosen) // SHARE, INPUTS), numbers(EXPERTS, OUTPUTS, INPUTS, seed=1)
    bias = numbers(EXPERTS, OUTPUTS, seed=2) if biased else None
    want = reference(x, chosen, matrix, bias, gate)
    order = torch.arange(OUTPUTS)
    if in_turn:
        order[interleaved(OUTPUTS)] = order.clone()
    given = matrix[:, order]
    given = given.mT.contiguous() if transposed else given
    bias = None if bias is None else bias[:, order]
    got = Pairs(chosen.to(DEVICE), EXPERTS).multiply(
        x, given, bias, share=SHARE, gate=gate, in_turn=in_turn, transposed=transposed
    )
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 9, pytest.param(MANY * EXPERTS, marks=LONG)])
def test_sorted_pairs_are_all_pairs_with_an_expert_once(rows: int) -> None:
    """By tiles of few pairs and of many, in both arrangements of tiles."""
    random = torch.Generator().manual_seed(rows)
    chosen = torch.randint(0, EXPERTS + 1, (rows * SHARE,), generator=random).to(DEVICE)
    pairs = Pairs(chosen, EXPERTS)
    seen = []
    for expert, first, count in pairs._tiles.tolist():
        if count:
            taken = pairs._order[first : first + count].tolist()
            assert taken == sorted(taken)
            assert {int(chosen[pair]) for pair in taken} == {expert}
            seen += taken
    assert sorted(seen) == [pair for pair, expert in enumerate(chosen.tolist()) if expert < EXPERTS]


def experts_of(family: str, dtype: torch.dtype) -> Any:
    found: Any = next(module for module in mixture(family, dtype).to(DEVICE).modules() if has_grouped(module))
    found.config._experts_implementation = "eager"
    return found


def given_to(experts: Any, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(rows)
    width = experts.down_proj.shape[2 if experts.is_transposed else 1]
    chosen = torch.stack([torch.randperm(4, generator=random)[:2] for _ in range(rows)])
    return numbers(rows, width, dtype=dtype), chosen.to(DEVICE), numbers(rows, 2, dtype=dtype, seed=7).abs()


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_moe", torch.float32),
        ("gpt_oss", torch.bfloat16),
        pytest.param("gpt_oss", torch.float32, marks=LONG),
        pytest.param("deepseek_v3", torch.float16, marks=LONG),
        pytest.param("nemotron_h", torch.float32, marks=LONG),  # no gate
    ],
)
def test_a_layers_experts_are_those_of_transformers(family: str, dtype: torch.dtype) -> None:
    experts = experts_of(family, dtype)
    for rows in (1, 11):
        given = given_to(experts, rows, dtype)
        with torch.inference_mode():
            want = experts(*given)
            undo = group_experts(experts)
            assert undo is not None
            got = experts(*given)
            undo()
            assert torch.equal(experts(*given), want)
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, atol=TOLERANCE[dtype] * float(want.abs().max()), rtol=0)


def test_a_row_does_not_depend_on_the_others_and_a_number_beyond_the_experts_chooses_none() -> None:
    experts = experts_of("qwen3_moe", torch.float32)
    x, chosen, weights = given_to(experts, 7, torch.float32)
    chosen[2, 1], chosen[4] = EXPERTS, EXPERTS
    with torch.inference_mode():
        group_experts(experts)
        whole = experts(x, chosen, weights)
        assert not whole[4].any()
        for size in (1, 3):
            parts = zip(x.split(size), chosen.split(size), weights.split(size), strict=True)
            assert torch.equal(torch.cat([experts(*part) for part in parts]), whole)
        one = experts(x[2:3], chosen[2:3, :1], weights[2:3, :1])
        assert torch.equal(one, whole[2:3])
        assert not experts(x[:0], chosen[:0], weights[:0]).numel()


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt_oss", "int4"),  # gates in turn with ups, biases, transposed matrices
        pytest.param("qwen3_moe", "int8", marks=LONG),
        pytest.param("qwen3_moe", "fp8", marks=LONG),
        pytest.param("nemotron_h", "int4", marks=LONG),  # no gate
    ],
)
def test_experts_with_codes_have_the_numbers_of_the_codes(family: str, name: str) -> None:
    experts = experts_of(family, torch.float32)
    original = copy.deepcopy(experts)
    for each in ("gate_up_proj", "up_proj", "down_proj"):
        if (weight := original._parameters.get(each)) is not None:
            matrices = weight.mT if experts.is_transposed else weight
            numbers = CODES[name](matrices.detach().flatten(0, 1)).numbers().view(matrices.shape)
            weight.data = numbers.mT if experts.is_transposed else numbers
    with torch.inference_mode():
        wants = {rows: original(*given_to(original, rows, torch.float32)) for rows in (1, 9)}
        group_experts(experts, CODES[name])
        assert not [each for each, parameter in experts.named_parameters() if parameter.dim() == 3]
        for rows, want in wants.items():
            x, chosen, weights = given_to(original, rows, torch.float32)
            got = experts(x, chosen, weights)
            torch.testing.assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=0)
            assert torch.equal(experts(x[:1], chosen[:1], weights[:1]), got[:1])


def test_experts_with_codes_of_checkpoints_have_their_numbers() -> None:
    """MXFP4, and four bits with zero points."""
    x, chosen = numbers(6, INPUTS), torch.tensor([0, 2, 1, 1, 3, 4] * 2, device=DEVICE)
    for form, group, zeros in ((Form.FP4, 32, False), (Form.INT4, 64, True)):
        codes = grouped(form, EXPERTS * OUTPUTS, INPUTS, group, zeros=zeros)
        matrix = codes.numbers().view(EXPERTS, OUTPUTS, INPUTS)
        got = Pairs(chosen, EXPERTS).multiply_codes(x, codes, None, share=SHARE, gate=Gate())
        want = reference(x, chosen, matrix, None, Gate())
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


def test_rows_that_do_not_fit_the_experts_are_refused() -> None:
    pairs = Pairs(torch.tensor([0, 1], device=DEVICE), EXPERTS)
    for wrong in (numbers(2, INPUTS + 1), numbers(3, INPUTS), numbers(2, INPUTS, dtype=torch.float16)):
        with pytest.raises(ValueError, match="do not fit the experts"):
            pairs.multiply(wrong, numbers(EXPERTS, OUTPUTS, INPUTS), None)
