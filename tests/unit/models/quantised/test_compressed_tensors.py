"""Weights written by the compressed-tensors library itself mean what that library reads from them, exactly.

Skipped if the library is not installed; tests of the same format that need no library are in test_formats.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.support.quantised import KINDS, checkpoint, load, logits

pytest.importorskip("compressed_tensors")
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.quant_scheme import NVFP4
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

INT: Final[dict[str, Any]] = {"type": "int", "symmetric": True}
SCHEMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "W4A16": ("pack-quantized", {**INT, "num_bits": 4, "strategy": "group", "group_size": 16}),
    "W4A16 with zeros": (
        "pack-quantized",
        {**INT, "num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False},
    ),
    "W8A16": ("pack-quantized", {**INT, "num_bits": 8, "strategy": "channel"}),
    "W3A16": ("pack-quantized", {**INT, "num_bits": 3, "strategy": "group", "group_size": 32}),
    "W8A8": ("int-quantized", {**INT, "num_bits": 8, "strategy": "channel"}),
    "W8A8 with zeros": ("int-quantized", {**INT, "num_bits": 8, "strategy": "tensor", "symmetric": False}),
    "FP8": ("float-quantized", {"type": "float", "num_bits": 8, "strategy": "tensor"}),
    "FP8 a channel": ("float-quantized", {"type": "float", "num_bits": 8, "strategy": "channel"}),
    "FP8 blocks": (
        "float-quantized",
        {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [24, 20]},
    ),
}


def scales_of(weight: torch.Tensor, weights: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros, with the library's own formula, in the shapes of its observers."""
    rows, columns = weight.shape
    strategy = weights["strategy"]
    tall, wide = {
        "tensor": (rows, columns),
        "channel": (1, columns),
        "group": (1, weights.get("group_size", 1)),
        "block": tuple(weights.get("block_structure", (1, 1))),
    }[strategy]
    low, high = (
        torch.stack(
            [torch.stack([found(part) for part in band.split(wide, 1)]) for band in weight.split(tall)]
        )
        for found in (torch.min, torch.max)
    )
    scales, zeros = calculate_qparams(low, high, QuantizationArgs(**weights))
    return (scales.reshape(1), zeros.reshape(1)) if strategy == "tensor" else (scales, zeros)


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("name", SCHEMES)
def test_the_model_is_that_which_the_library_decompresses(
    tmp_path: Path, name: str, architecture: str
) -> None:
    form, weights = SCHEMES[name]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    library = BaseCompressor.get_value_from_registry(form)

    def pack(module: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        scales, zeros = scales_of(weight, weights)
        plain = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
        written = library.compress(plain, scheme)
        read = library.decompress(dict(written), scheme)["weight"]
        return {
            f"{module}.{part}": each.contiguous() for part, each in written.items()
        }, read.float().contiguous()

    settings = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    want = checkpoint(tmp_path, architecture, pack, settings)
    assert torch.equal(logits(load(tmp_path)), logits(want))


@pytest.mark.parametrize("architecture", KINDS)
def test_nvfp4_is_what_the_library_unpacks(tmp_path: Path, architecture: str) -> None:
    weights = QuantizationArgs(**NVFP4["weights"].model_dump())
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    library = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")

    def pack(module: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        outer = generate_gparam(*torch.aminmax(weight))
        parts = weight.view(len(weight), -1, 16)
        scales, _ = calculate_qparams(parts.amin(2), parts.amax(2), weights, global_scale=outer)
        plain = {"weight": weight, "weight_scale": scales, "weight_global_scale": outer}
        written = library.compress(plain, scheme)
        codes = unpack_fp4_from_uint8(written["weight_packed"], *weight.shape, dtype=torch.float32)
        read = dequantize(
            codes, written["weight_scale"].float(), args=weights, global_scale=outer, dtype=torch.float32
        )
        return {f"{module}.{part}": each.contiguous() for part, each in written.items()}, read.contiguous()

    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": group},
    }
    want = checkpoint(tmp_path, architecture, pack, settings)
    assert torch.equal(logits(load(tmp_path)), logits(want))
