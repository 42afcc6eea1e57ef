"""Weights written by bitsandbytes itself mean what that library reads from them.

Its int8 divides by 127 after multiplying, so numbers differ by the last bit: logits by at most 1e-5. Skipped
if the library is not installed; tests of the same formats that need no library are in test_formats.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.quantised import KINDS, checkpoint, load, logits

pytest.importorskip("bitsandbytes")
from bitsandbytes import functional
from bitsandbytes.nn import Linear8bitLt


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits(tmp_path: Path, kind: str, nested: bool, architecture: str) -> None:
    def pack(module: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        codes, state = functional.quantize_4bit(
            weight, blocksize=32, quant_type=kind, compress_statistics=nested
        )
        parts = state.as_dict(packed=True)
        written = {f"{module}.weight": codes, **{f"{module}.weight.{k}": v.clone() for k, v in parts.items()}}
        return written, functional.dequantize_4bit(codes, state)

    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    want = checkpoint(tmp_path, architecture, pack, settings)
    assert torch.equal(logits(load(tmp_path)), logits(want))


@pytest.mark.parametrize("architecture", KINDS)
def test_int8(tmp_path: Path, architecture: str) -> None:
    def pack(module: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        linear: Any = Linear8bitLt(weight.shape[1], weight.shape[0], bias=False, has_fp16_weights=False)
        linear.load_state_dict({"weight": weight})
        state = linear.to("cpu").state_dict()
        meant = functional.int8_vectorwise_dequant(state["weight"], state["SCB"])
        return {f"{module}.{key}": each.clone() for key, each in state.items()}, meant.float()

    want = checkpoint(tmp_path, architecture, pack, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    torch.testing.assert_close(logits(load(tmp_path)), logits(want), rtol=0, atol=1e-5)
