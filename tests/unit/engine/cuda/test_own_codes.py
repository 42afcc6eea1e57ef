"""The codes of quantised checkpoints on a GPU: in Triton's interpreter where there is no device."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import nn

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.codes.tensor import CodedTensor, plain_weights
from serve_app.config import EngineConfig
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cuda.experts.grouped import PLACE, group_experts
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.weights.codes_product import CodesProduct
from serve_app.engine.weights.gpu_codes import FP4_VALUES
from serve_app.engine.weights.gpu_own_codes import gpu_codes_of, load_codes_on_gpu
from serve_app.engine.weights.packed_linear import PackedLinear
from tests.support.mixtures import mixture
from tests.support.tiny_models import BASE, BLOCK, TABLES, make_model, make_sequence, tiny_config
from tests.support.triton_interpreter import LONG, long

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def matrix(
    rows: int, columns: int, block: tuple[int, int], most: int, *, zeros: bool = False, seed: int = 0
) -> QuantisedMatrix:
    """uint8 codes up to `most`, with scales that suit weights of about one over the root of `columns`."""
    random = torch.Generator().manual_seed(seed + rows + columns)
    groups = -(-rows // block[0]), math.ceil(columns / block[1])
    found = torch.randint(0, most + 1, groups, generator=random, dtype=torch.int16)
    made = QuantisedMatrix(
        torch.randint(0, most + 1, (rows, columns), generator=random, dtype=torch.uint8),
        (torch.rand(groups, generator=random) + 0.5) / most / columns**0.5,
        block,
        zeros=found if zeros else torch.full_like(found, (most + 1) // 2),
    )
    return moved(made)


def moved(made: QuantisedMatrix) -> QuantisedMatrix:
    kept = ("codes", "scales", "zeros", "permutation", "values")
    there: dict[str, Any] = {
        name: None if (each := getattr(made, name)) is None else each.to(DEVICE) for name in kept
    }
    return replace(made, **there)


def fp8(rows: int, columns: int, block: tuple[int, int], seed: int = 0) -> QuantisedMatrix:
    made = matrix(rows, columns, block, 255, seed=seed)
    numbers = (made.codes.float() - 128).to(torch.float8_e4m3fn)
    return replace(made, codes=numbers, zeros=None)


def mxfp4(rows: int, columns: int, seed: int = 0) -> QuantisedMatrix:
    made = matrix(rows, columns, (1, 32), 15, seed=seed)
    powers = torch.exp2(made.scales.log2().round())
    return replace(made, scales=powers, zeros=None, values=FP4_VALUES.to(DEVICE))


def act_order(rows: int, columns: int, group: int) -> QuantisedMatrix:
    made = matrix(rows, columns, (1, group), 15, zeros=True)
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(1)) // group
    return moved(replace(made, permutation=order))


KEPT: Final = {
    "GPTQ, 4 bits": lambda: matrix(20, 256, (1, 128), 15, zeros=True),
    "GPTQ, 4 bits, symmetric": lambda: matrix(20, 96, (1, 32), 15),
    "GPTQ, 3 bits": lambda: matrix(20, 64, (1, 64), 7, zeros=True),
    "GPTQ, 8 bits, a group for each row": lambda: matrix(20, 72, (1, 72), 255, zeros=True),
    "GPTQ, act-order": lambda: act_order(20, 256, 64),
    "GPTQ, act-order, all inputs in one group": lambda: replace(
        act_order(20, 64, 16), permutation=torch.zeros(64, dtype=torch.int64)
    ),
    "int8 with a scale for each row": lambda: replace(
        matrix(20, 72, (1, 72), 255), codes=matrix(20, 72, (1, 72), 255).codes.view(torch.int8), zeros=None
    ),
    "FP8 with one scale": lambda: fp8(20, 72, (20, 72)),
    "FP8 in blocks": lambda: fp8(40, 300, (32, 128)),
    "MXFP4": lambda: mxfp4(20, 96),
}


@pytest.mark.parametrize("name", KEPT)
def test_codes_of_checkpoints_stay_the_same_numbers(name: str) -> None:
    made = KEPT[name]()
    codes = gpu_codes_of(made)
    assert codes is not None
    assert (codes.zeros is None) == ("symmetric" in name or ("bits" not in name and "act" not in name))
    want = made.dequantise(torch.float32)
    torch.testing.assert_close(codes.numbers(), want, rtol=1e-6, atol=0)
    if "bits," not in name:  # products with such groups: test_codes.py
        return
    x = torch.randn(3, want.shape[1], generator=torch.Generator().manual_seed(0)).to(DEVICE)
    product = load_codes_on_gpu(made, None, torch.float32)
    assert product is not None
    torch.testing.assert_close(product.multiply(x, torch.float32), x @ want.T, rtol=1e-5, atol=1e-4)


def test_a_row_is_put_into_the_order_of_the_groups() -> None:
    made = act_order(20, 256, 64)
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    product = load_codes_on_gpu(made, None, torch.float32)
    assert product is not None
    want = x @ made.dequantise(torch.float32).T
    torch.testing.assert_close(product.multiply(x, torch.float32), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "made",
    [
        replace(matrix(4, 64, (1, 64), 15), values=torch.linspace(-1, 1, 16), zeros=None),  # NF4
        replace(fp8(4, 64, (1, 64)), codes=torch.ones(4, 64).to(torch.float8_e5m2)),
        matrix(4, 96, (1, 24), 15, zeros=True),  # groups that no step has
    ],
    ids=["NF4", "E5M2", "groups of 24"],
)
def test_codes_without_a_product_are_left_to_plain_numbers(made: QuantisedMatrix) -> None:
    assert gpu_codes_of(moved(made)) is None
    assert load_codes_on_gpu(moved(made), None, torch.float32) is None


class Held:
    """A matrix as a `Source`."""

    def __init__(self, made: QuantisedMatrix) -> None:
        self._made = made

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self._made.codes.shape
        return rows, columns

    def codes(self) -> QuantisedMatrix:
        return self._made

    def write_to(self, out: torch.Tensor) -> None:
        self._made.write_to(out)


def coded(made: QuantisedMatrix, *others: QuantisedMatrix, transposed: bool = False) -> nn.Parameter:
    sources = [Held(each) for each in (made, *others)]
    weight = CodedTensor.of(sources, torch.float32, DEVICE, experts=bool(others), transposed=transposed)
    return nn.Parameter(weight, requires_grad=False)


def logits(model: Any, backend: Any) -> list[torch.Tensor]:
    config = EngineConfig(block_size=BLOCK, num_blocks=16)
    runner = ModelRunner(
        model, backend=backend, dtype=torch.float32, device=DEVICE, config=config, context_window=32
    )
    sequence = make_sequence("0", list(range(3, 17)), TABLES[0])
    chunks = ((0, 11), (11, 2), (13, 1))
    return [
        runner.run(build_batch([Chunk(sequence, start, length, start)], BLOCK, DEVICE))
        for start, length in chunks
    ]


@pytest.mark.parametrize("architecture", ["qwen3", pytest.param("gemma", marks=LONG)])  # fused, and not
def test_a_models_linears_stay_codes(architecture: str) -> None:
    model = make_model(tiny_config(architecture, **{**BASE, "num_hidden_layers": 1})).to(DEVICE)
    for number, linear in enumerate(each for each in model.modules() if isinstance(each, nn.Linear)):
        rows, columns = linear.weight.shape
        linear.weight = coded(
            fp8(rows, columns, (16, 128), number)
            if number % 2
            else matrix(rows, columns, (1, 16), 15, seed=number)
        )
    original = copy.deepcopy(model)
    said: list[str] = []
    accelerate_cuda(model, torch.float32, progress=said.append)
    plain_weights(original)
    assert any("are multiplied by as codes" in line for line in said)
    assert not any("no product" in line for line in said)
    assert plain_weights(model) == (0, 0)
    kept = [each.weight_kept for each in model.modules() if isinstance(each, PackedLinear)]
    assert any(isinstance(each, CodesProduct) for each in kept)
    want = logits(original, ReferenceAttention())
    for one, other in zip(logits(model, TritonAttention()), want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def in_mxfp4(experts: Any) -> None:
    """Give experts of gpt-oss, whose weights are transposed, random codes."""
    for seed, name in enumerate(("gate_up_proj", "down_proj")):
        count, columns, rows = getattr(experts, name).shape
        made = [mxfp4(rows, columns, 10 * seed + each) for each in range(count)]
        setattr(experts, name, coded(*made, transposed=True))


def test_experts_in_mxfp4_stay_codes() -> None:
    found = (part for part in mixture("gpt_oss").to(DEVICE).modules() if hasattr(part, "gate_up_proj"))
    experts: Any = next(found)
    experts.config._experts_implementation = "eager"
    in_mxfp4(experts)
    original = copy.deepcopy(experts)
    plain_weights(original)
    group_experts(experts)
    assert getattr(experts, PLACE).in_codes
    assert not [name for name, each in experts.named_parameters() if each.dim() == 3]
    made = torch.Generator().manual_seed(0)
    x = torch.randn(5, experts.hidden_size, generator=made).to(DEVICE)
    chosen = torch.tensor([[0, 1], [2, 3], [1, 2], [3, 0], [1, 1]], device=DEVICE)
    weights = torch.rand(5, 2, generator=made).to(DEVICE)
    with torch.inference_mode():
        want, got = original(x, chosen, weights), experts(x, chosen, weights)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))


@long
def test_a_model_with_experts_in_mxfp4_gives_the_logits_of_their_numbers() -> None:
    model = mixture("gpt_oss").to(DEVICE)
    for part in model.modules():
        if hasattr(part, "gate_up_proj"):
            in_mxfp4(part)
    original = copy.deepcopy(model)
    plain_weights(original)
    said: list[str] = []
    accelerate_cuda(model, torch.float32, progress=said.append)
    assert any("multiplied by as codes" in line for line in said)
    want = logits(original, ReferenceAttention())
    for one, other in zip(logits(model, TritonAttention()), want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
