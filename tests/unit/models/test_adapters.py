"""A client's adapter: what its two tensors mean, and that nothing else passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from serve_app.errors import InvalidField
from serve_app.models.adapters import MODULE_IDS, Accepts, fingerprint, read_tensors
from serve_app.types import Tensor
from tests.support.adapters import Shapes, floats, int32, matrices, tensors

SHAPES: Shapes = {
    (layer, module): shape
    for layer in range(2)
    for module, shape in {
        "q_proj": (24, 16),
        "k_proj": (8, 16),
        "v_proj": (8, 16),
        "o_proj": (16, 24),
        "gate_proj": (40, 16),
        "up_proj": (40, 16),
        "down_proj": (16, 40),
    }.items()
}
ACCEPTS = Accepts(SHAPES, 4, torch.float32)


def refused(config: Tensor, weights: Tensor, accepts: Accepts = ACCEPTS) -> str:
    with pytest.raises(InvalidField) as caught:
        read_tensors(config, weights, accepts)
    assert caught.value.message.startswith(f"{caught.value.param}: ")
    return caught.value.message


@pytest.mark.parametrize("dtype", ["FP32", "FP16", "BF16"])
def test_rows_are_a_flat_then_b_flat_then_padding(dtype: str) -> None:
    parts = matrices(SHAPES, 0, rank=3)
    found = read_tensors(*tensors(parts, dtype, padding=5), ACCEPTS)
    assert {(each.layer, each.module) for each in found} == set(SHAPES)
    for each in found:
        a, b = parts[each.layer, each.module]
        kind = each.a.dtype
        assert torch.equal(each.a, a.to(kind))
        assert torch.equal(each.b, b.to(kind))


def test_the_ids_of_modules_are_the_converters() -> None:
    names = ("qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj")
    assert names == MODULE_IDS


def test_attn_qkv_is_all_three_side_by_side() -> None:
    a, b = torch.randn(2, 16), torch.randn(40, 2)
    row = torch.cat([a.flatten(), b.flatten()])[None]
    found = read_tensors(int32([(0, 1, 2)]), floats(row), ACCEPTS)
    assert [(each.layer, each.module) for each in found] == [(1, "q_proj"), (1, "k_proj"), (1, "v_proj")]
    assert all(torch.equal(each.a, a) for each in found)
    assert torch.equal(torch.cat([each.b for each in found]), b)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((-1, 0, 2), "row 1: the module id must be from 0 to 7"),
        ((8, 0, 2), "row 1: the module id must be from 0 to 7"),
        ((1, -1, 2), "row 1: the layer must be from 0 to 1"),
        ((1, 2, 2), "row 1: the layer must be from 0 to 1"),
        ((1, 0, 0), "row 1: the rank must be from 1 to 4"),
        ((1, 0, 5), "row 1: the rank must be from 1 to 4"),
        ((1, 0, -(2**31)), "row 1: the rank must be from 1 to 4"),
        ((4, 1, 2), "o_proj of layer 1 is there twice"),
        ((1, 0, 4), "row 1: q_proj with rank 4 has 160 numbers (4 x 16 and 24 x 4), but rows are 80 wide"),
    ],
)
def test_a_row_out_of_range_is_named(row: tuple[int, int, int], words: str) -> None:
    weights = floats(torch.zeros(2, 80))
    assert words in refused(int32([(4, 1, 2), row]), weights)


def test_q_beside_qkv_is_one_place_twice() -> None:
    weights = floats(torch.zeros(2, 112))
    assert "q_proj of layer 0 is there twice" in refused(int32([(1, 0, 2), (0, 0, 2)]), weights)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("at", [0, 16 * 2, 79], ids=["A", "B", "last"])
def test_numbers_must_be_finite(value: float, at: int) -> None:
    weights = torch.zeros(1, 80)
    weights[0, at] = value
    assert "lora_weights: row 0: must hold finite numbers" in refused(int32([(1, 0, 2)]), floats(weights))


def test_numbers_must_be_finite_in_the_models_type() -> None:
    weights = floats(torch.full((1, 80), 1e6))
    assert read_tensors(int32([(1, 0, 2)]), weights, ACCEPTS)
    half = Accepts(SHAPES, 4, torch.float16)
    assert "of the model's type" in refused(int32([(1, 0, 2)]), weights, half)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "FP32"}, "lora_config: must be of type INT32"),
        ({"shape": (3,)}, "lora_config: must have the shape [rows, 3]"),
        ({"shape": (1, 4)}, "lora_config: must have the shape [rows, 3]"),
        ({"shape": (0, 3)}, "lora_config: must have the shape [rows, 3]"),
        ({"shape": (-1, 3)}, "lora_config: must have the shape [rows, 3]"),
        ({"shape": (2, 3)}, "lora_config: must hold 6 numbers of 4 bytes"),
        ({"shape": (2**62, 3)}, "lora_config: must hold"),
        ({"data": b""}, "lora_config: must hold 3 numbers"),
    ],
)
def test_lora_config_has_one_form(changes: dict[str, Any], words: str) -> None:
    config = replace(int32([(1, 0, 2)]), **changes)
    assert words in refused(config, floats(torch.zeros(1, 80)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "FP64"}, "lora_weights: must be of type FP32, FP16, BF16"),
        ({"dtype": "FP16"}, "lora_weights: must hold 80 numbers of 2 bytes"),
        ({"shape": (80,)}, "lora_weights: must have the shape [rows, width]"),
        ({"shape": (2, 40)}, "lora_weights: must have a row for each of the 1 rows of lora_config"),
        ({"shape": (1, 81)}, "lora_weights: must hold 81 numbers"),
        ({"data": bytes(319)}, "lora_weights: must hold 80 numbers"),
    ],
)
def test_lora_weights_has_one_form(changes: dict[str, Any], words: str) -> None:
    weights = replace(floats(torch.zeros(1, 80)), **changes)
    assert words in refused(int32([(1, 0, 2)]), weights)


def test_no_more_rows_than_places() -> None:
    rows = [(1, 0, 1)] * (len(SHAPES) + 1)
    assert f"must have 1 to {len(SHAPES)} rows" in refused(int32(rows), floats(torch.zeros(len(rows), 40)))


def test_a_model_without_a_module_says_so() -> None:
    attention = {place: shape for place, shape in SHAPES.items() if place[1] in ("q_proj", "o_proj")}
    accepts = Accepts(attention, 4, torch.float32)
    assert "this model has no gate_proj (module id 5) to adapt" in refused(
        int32([(5, 0, 1)]), floats(torch.zeros(1, 56)), accepts
    )
    assert "this model has no qkv_proj" in refused(int32([(0, 0, 1)]), floats(torch.zeros(1, 56)), accepts)
    none = Accepts({}, 4, torch.float32)
    assert "this model takes no adapters" in refused(int32([(1, 0, 1)]), floats(torch.zeros(1, 56)), none)


def test_random_bytes_are_read_or_refused() -> None:
    random = np.random.default_rng(0)
    read = 0
    for _ in range(300):
        rows = int(random.integers(1, 4))
        config = Tensor(
            dtype="INT32", shape=(rows, 3), data=random.integers(-1, 5, rows * 3, np.int32).tobytes()
        )
        width = int(random.integers(1, 200))
        kind = str(random.choice(["FP32", "FP16", "BF16"]))
        weights = Tensor(
            dtype=kind, shape=(rows, width), data=random.bytes(rows * width * (4 if kind == "FP32" else 2))
        )
        try:
            updates = read_tensors(config, weights, ACCEPTS)
        except InvalidField:
            continue
        read += 1
        assert all(each.a.isfinite().all() and each.b.isfinite().all() for each in updates)
    assert read


def test_a_fingerprint_is_of_the_content() -> None:
    parts = matrices(SHAPES, 0)
    updates = read_tensors(*tensors(parts), ACCEPTS)
    assert fingerprint(updates) == fingerprint(updates[::-1])
    assert fingerprint(updates) == fingerprint(read_tensors(*tensors(parts, padding=9), ACCEPTS))
    others = {fingerprint(updates), fingerprint(updates[1:]), fingerprint([])}
    others.add(fingerprint(read_tensors(*tensors(matrices(SHAPES, 1)), ACCEPTS)))
    moved = [each._replace(layer=1 - each.layer) for each in updates]
    assert len({*others, fingerprint(moved)}) == 5
