"""The codes of quantised checkpoints survive the load, and the engine multiplies by them as they are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from serve_app.codes.tensor import CodedTensor
from serve_app.engine.kernels import native
from tests.support.mixtures import alone, runner_of, texts
from tests.support.packers import int8_rows
from tests.support.quantised import Packer, checkpoint, load

INT8: Final[dict[str, Any]] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        }
    },
}
FORMATS: Final[dict[str, tuple[Packer, dict[str, Any]]]] = {"W8A8": (int8_rows, INT8)}


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "lfm2"])
@pytest.mark.parametrize("name", FORMATS)
def test_logits_are_those_of_the_dequantised_weights_but_for_activations(
    tmp_path: Path, name: str, architecture: str, caplog: pytest.LogCaptureFixture
) -> None:
    if native() is None:
        pytest.skip("without native products, weights are plain numbers")
    pack, settings = FORMATS[name]
    want = checkpoint(tmp_path, architecture, pack, settings)
    got = load(tmp_path)
    text = texts(1, random.Random(0))[0]
    with caplog.at_level("INFO"):
        runners = [runner_of(each) for each in (got, want)]
    assert "quantised weights are multiplied by as codes" in caplog.text
    assert "no product" not in caplog.text
    assert not any(isinstance(each, CodedTensor) for each in got.parameters())
    found, wanted = (alone(each, text) for each in runners)
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 0.05 * wanted.norm()
