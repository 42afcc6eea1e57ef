"""The codes of quantised checkpoints survive the load, and the engine multiplies by them as they are."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file

from serve_app.codes.tensor import CodedTensor
from serve_app.engine.kernels import native
from tests.support.mixtures import alone, in_crowd, runner_of, texts
from tests.support.packers import gptq, mxfp4
from tests.support.quantised import KINDS, checkpoint, load, publish, write_plain
from tests.unit.models.quantised.test_formats import FORMATS

GPTQ: Final = {"quant_method": "gptq", "bits": 4, "group_size": 16}
# By the device's own words; the others are multiplied by as codes.
CONVERTED: Final = [
    name
    for name in FORMATS
    if name.startswith(("fp8", "fbgemm", "float-quantized", "nf4")) or name == "modelopt"
]


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in CONVERTED])
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
    assert (found - wanted).norm() < 0.1 * wanted.norm()  # a router may choose another expert
    if architecture == "qwen3_5_text":
        return  # tests/invariance/test_states.py has crowds of states
    crowd = in_crowd(runners[0], [text, *texts(3, random.Random(1))], random.Random(0))
    assert torch.equal(crowd[0], found)


def test_experts_of_gpt_oss_are_multiplied_by_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if native() is None:
        pytest.skip("without native products, weights are plain numbers")
    write_plain(tmp_path, "gpt_oss")
    packed: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, weight in load_file(tmp_path / "plain" / "model.safetensors").items():
        packed[name] = meant[name] = weight
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            del packed[name]
            tensors, meant[name] = mxfp4(name, weight)
            packed |= tensors
    want = publish(tmp_path, packed, meant, {"quant_method": "mxfp4"})
    text = texts(1, random.Random(0))[0]
    with caplog.at_level("INFO"):
        found, wanted = (alone(runner_of(each), text) for each in (load(tmp_path), want))
    assert "quantised weights are multiplied by as codes" in caplog.text
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("name", CONVERTED)
def test_codes_without_a_product_are_loaded_by_their_numbers(
    tmp_path: Path, name: str, architecture: str, caplog: pytest.LogCaptureFixture
) -> None:
    pack, settings = FORMATS[name]
    want = checkpoint(tmp_path, architecture, pack, settings)
    text = texts(1, random.Random(0))[0]
    with caplog.at_level("INFO"):
        found, wanted = (alone(runner_of(each), text) for each in (load(tmp_path), want))
    assert "have no product over their codes here, and are in float32" in caplog.text
    assert "multiplied by as codes" not in caplog.text
    assert torch.equal(found, wanted)


def test_linears_of_one_layer_may_differ_in_their_schemes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows with groups of other sizes are joined; plain rows, and rows in another order, lie beside them."""
    if native() is None:
        pytest.skip("without native products, weights are plain numbers")

    def pack(module: str, weight: torch.Tensor) -> Any:
        if module.endswith("v_proj"):
            return gptq(module, weight, group=16)
        return gptq(module, weight, group=32, act_order=module.endswith("up_proj"))

    def chosen(module: str) -> bool:
        return module.endswith("_proj") and not module.endswith("0.self_attn.q_proj")

    settings = {**GPTQ, "group_size": 32, "dynamic": {r"+:.*\.v_proj": {"group_size": 16}}}
    want = checkpoint(tmp_path, "llama", pack, settings, chosen=chosen)
    text = texts(1, random.Random(0))[0]
    with caplog.at_level("INFO"):
        found, wanted = (alone(runner_of(each), text) for each in (load(tmp_path), want))
    assert "no product" not in caplog.text
    assert not torch.equal(found, wanted)
    assert (found - wanted).norm() < 0.1 * wanted.norm()
