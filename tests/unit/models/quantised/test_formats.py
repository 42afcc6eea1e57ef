"""Checkpoints of each format load as the model with the numbers that their codes mean, exactly.

Sums differ in nothing: both are float32 models with equal weights, (code - zero) x scale computed in float32.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from serve_app.codes.tensor import CodedTensor
from serve_app.config import ModelConfig
from serve_app.models.footprint import least_memory
from serve_app.models.quantised.mxfp4 import unpack as unpack_mxfp4
from serve_app.models.text_alone import language_model
from tests.support.packers import (
    awq,
    bnb_int8,
    fp8,
    fp8_rows,
    gptq,
    int8_rows,
    mxfp4,
    nf4,
    nvfp4,
    pack_quantized,
)
from tests.support.quantised import KINDS, Packer, checkpoint, load, logits, publish, write_plain

GROUP: Final = {"quant_method": "gptq", "bits": 4, "group_size": 16}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


FORMATS: Final[dict[str, tuple[Packer, dict[str, Any]]]] = {
    "fp8 a tensor": (fp8, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8 partial blocks": (
        partial(fp8, block=(24, 20), ending="weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [24, 20], "activation_scheme": "dynamic"},
    ),
    "fbgemm": (fp8_rows, {"quant_method": "fbgemm_fp8"}),
    "modelopt": (fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "float-quantized": (fp8_rows, compressed("float-quantized", type="float", strategy="channel")),
    "float-quantized blocks": (
        partial(fp8, block=(24, 20)),
        compressed("float-quantized", type="float", strategy="block", block_structure=[24, 20]),
    ),
    "int-quantized": (int8_rows, compressed("int-quantized", type="int", strategy="channel")),
    "naive-quantized": (int8_rows, compressed("naive-quantized", type="int", strategy="channel")),
    "pack-quantized 4": (
        pack_quantized,
        compressed("pack-quantized", type="int", num_bits=4, strategy="group", group_size=16),
    ),
    "pack-quantized 8 with zeros": (
        partial(pack_quantized, bits=8, symmetric=False),
        compressed("pack-quantized", type="int", strategy="group", group_size=16, symmetric=False),
    ),
    "pack-quantized act-order": (
        partial(pack_quantized, symmetric=False, act_order=True),
        compressed(
            "pack-quantized", type="int", num_bits=4, strategy="group", group_size=16, symmetric=False
        ),
    ),
    "gptq 2": (partial(gptq, bits=2), {**GROUP, "bits": 2}),
    "gptq 3": (partial(gptq, bits=3, group=32), {**GROUP, "bits": 3, "group_size": 32}),
    "gptq 4 symmetric": (partial(gptq, symmetric=True), {**GROUP, "sym": True}),
    "gptq 4 act-order": (partial(gptq, act_order=True), {**GROUP, "desc_act": True}),
    "gptq 4 v2": (partial(gptq, version=2), {**GROUP, "checkpoint_format": "gptq_v2"}),
    "gptq 4 without order": (partial(gptq, with_order=False), GROUP),
    "gptq 4 a row": (partial(gptq, group=-1), {**GROUP, "group_size": -1}),
    "gptq 8 a row": (partial(gptq, bits=8, group=-1), {**GROUP, "bits": 8, "group_size": -1}),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}),
    "nf4 nested": (
        partial(nf4, nested=True),
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    ),
    "bitsandbytes int8": (bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "nvfp4 of modelopt": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nvfp4-pack-quantized": (
        partial(nvfp4, divides=True),
        compressed("nvfp4-pack-quantized", type="float", num_bits=4, strategy="tensor_group", group_size=16),
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}),
}


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_the_model_is_that_of_the_numbers_that_its_codes_mean(
    tmp_path: Path, name: str, architecture: str
) -> None:
    pack, settings = FORMATS[name]
    want = checkpoint(tmp_path, architecture, pack, settings, shards=3)
    lines: list[str] = []
    got = load(tmp_path, lines)
    assert any("weights are " in line and "GiB of codes" in line for line in lines)
    assert any(isinstance(each, CodedTensor) for each in got.parameters())
    assert torch.equal(logits(got), logits(want))
    assert {each.dtype for each in got.parameters()} == {torch.float32}
    got = load(tmp_path, lines, dtype="float32")
    assert any(line.startswith("converting ") and "to float32" in line for line in lines)
    assert not any(isinstance(each, CodedTensor) for each in got.parameters())
    assert torch.equal(logits(got), logits(want))


@pytest.mark.parametrize(("algorithm", "pack"), [("FP8", fp8), ("NVFP4", nvfp4)])
def test_the_settings_of_modelopt_may_be_in_a_file_of_their_own(
    tmp_path: Path, algorithm: str, pack: Packer
) -> None:
    """Its exports of before mid-2025 have no quantization_config in config.json."""
    want = checkpoint(tmp_path, "llama", pack, {})
    described = json.loads((tmp_path / "config.json").read_text())
    del described["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    beside = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": beside}))
    assert torch.equal(logits(load(tmp_path)), logits(want))
    plain = ModelConfig(name="m", source=str(tmp_path / "plain"), dtype="bfloat16")
    assert least_memory(plain.model_copy(update={"source": str(tmp_path)})) == least_memory(plain)


def test_experts_of_gpt_oss_are_read_with_their_biases_and_in_their_order(tmp_path: Path) -> None:
    write_plain(tmp_path, "gpt_oss")
    packed: dict[str, torch.Tensor] = {}
    meant: dict[str, torch.Tensor] = {}
    for name, weight in load_file(tmp_path / "plain" / "model.safetensors").items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors, meant[name] = mxfp4(name, weight)
            packed |= tensors
        else:
            biased = torch.randn_like(weight) if name.endswith("_bias") else weight
            packed[name] = meant[name] = biased
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    want = publish(tmp_path, packed, meant, settings)
    assert sum(name.endswith("_bias") for name in packed) == 4
    assert torch.equal(logits(load(tmp_path)), logits(want))


def test_mxfp4_means_what_transformers_reads_for_any_bytes() -> None:
    draw = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (3, 64, 2, 16), dtype=torch.uint8, generator=draw)
    scales = torch.randint(0, 254, (3, 64, 2), dtype=torch.uint8, generator=draw)
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    for number in range(3):
        found = unpack_mxfp4({"blocks": blocks[number], "scales": scales[number]}).dequantise(torch.float32)
        assert torch.equal(found.T, want[number])


def test_a_head_and_single_layers_may_be_codes_or_not(tmp_path: Path) -> None:
    """Files decide: what has codes is converted, the rest is loaded as it is."""

    def chosen(module: str) -> bool:
        return module == "lm_head" or (module.startswith("model.layers.1.") and "self_attn" not in module)

    settings = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.", "re:.*self_attn.*"]}
    want = checkpoint(tmp_path, "qwen3_moe", fp8, settings, chosen=chosen)
    assert torch.equal(logits(load(tmp_path)), logits(want))


def test_layers_may_have_schemes_of_their_own(tmp_path: Path) -> None:
    def pack(module: str, weight: torch.Tensor) -> Any:
        if module.endswith("v_proj"):
            return gptq(module, weight, bits=8, group=32)
        return gptq(module, weight)

    settings = {**GROUP, "dynamic": {r"+:.*\.v_proj": {"bits": 8, "group_size": 32}, r"-:lm_head": {}}}
    want = checkpoint(tmp_path, "llama", pack, settings)
    assert torch.equal(logits(load(tmp_path)), logits(want))


def test_groups_of_compressed_tensors_may_name_single_layers(tmp_path: Path) -> None:
    """A name or a pattern goes before a class, wherever its group stands."""

    def pack(module: str, weight: torch.Tensor) -> Any:
        if module.endswith("v_proj"):
            return fp8_rows(module, weight)
        if module == "model.layers.1.mlp.down_proj":
            return pack_quantized(module, weight, bits=8, group=32)
        return pack_quantized(module, weight)

    def group(target: str, form: str, **weights: Any) -> dict[str, Any]:
        return {"targets": [target], "format": form, "weights": {"symmetric": True, **weights}}

    grouped = {"type": "int", "strategy": "group"}
    groups = {
        "group_0": group("Linear", "pack-quantized", **grouped, num_bits=4, group_size=16),
        "group_1": group("re:.*v_proj$", "float-quantized", type="float", strategy="channel", num_bits=8),
        "group_2": group(
            "model.layers.1.mlp.down_proj", "pack-quantized", **grouped, num_bits=8, group_size=32
        ),
    }
    settings = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    want = checkpoint(tmp_path, "llama", pack, settings)
    assert torch.equal(logits(load(tmp_path)), logits(want))


def test_a_model_that_reads_images_too_is_converted(tmp_path: Path) -> None:
    """Its text is quantised, its other parts are not."""
    want = checkpoint(
        tmp_path,
        "gemma3",
        fp8,
        {"quant_method": "fp8"},
        chosen=lambda name: name.startswith("language_model") and name.endswith("_proj"),
    )
    assert torch.equal(logits(load(tmp_path)), logits(language_model(want)))


def test_the_weights_of_a_quantised_checkpoint_are_served_in_the_type_that_is_chosen(tmp_path: Path) -> None:
    want = checkpoint(tmp_path, "llama", fp8, {"quant_method": "fp8"})
    got = load(tmp_path, dtype="bfloat16")
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(got.get_parameter(name), want.get_parameter(name).bfloat16())
