"""A GGUF file is the model of the numbers that its blocks mean, exactly, in each family and each type."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import gguf
import pytest
import torch
from gguf.quants import dequantize

from serve_app.models.quantised.gguf import unpack
from tests.support.gguf_files import SIZES, Kinds, Type, make_gguf, random_blocks
from tests.support.quantised import load, logits

TYPES: Final = [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
K_TYPES: Final = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS]


def mixed(*types: Type) -> Kinds:
    """The types in turn, by the sum of a name's letters."""
    return lambda name: types[sum(name.encode()) % len(types)]


@pytest.mark.parametrize("architecture", SIZES)
def test_a_model_of_each_family_computes_what_its_checkpoint_does(tmp_path: Path, architecture: str) -> None:
    want = make_gguf(tmp_path / "m.gguf", architecture, mixed(*TYPES))
    lines: list[str] = []
    got = load(tmp_path / "m.gguf", lines, dtype="float32")
    assert any(line.startswith("converting ") and "from GGUF (Q4_0, Q4_1" in line for line in lines)
    assert type(got) is type(want)
    assert torch.equal(logits(got), logits(want))


@pytest.mark.parametrize("kind", [*TYPES, *K_TYPES], ids=lambda kind: kind.name)
def test_each_type_means_what_the_package_reads_for_any_bytes(kind: Type) -> None:
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    if kind in K_TYPES:
        blocks = random_blocks(kind, (7, 3, size))
    else:
        weights = torch.randn(7, 3 * numbers, generator=torch.Generator().manual_seed(0)).numpy()
        blocks = gguf.quants.quantize(weights, kind).reshape(7, 3, size)
    want = torch.from_numpy(dequantize(blocks.reshape(7, -1), kind).copy())
    found = unpack({"blocks": torch.from_numpy(blocks)}, kind.name).dequantise(torch.float32)
    assert torch.equal(found, want)


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
def test_floats_are_loaded_in_the_same_order(tmp_path: Path, kind: Type) -> None:
    want = make_gguf(tmp_path / "m.gguf", "llama", lambda name: kind)
    assert torch.equal(logits(load(tmp_path / "m.gguf", dtype="float32")), logits(want))
