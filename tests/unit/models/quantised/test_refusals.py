"""What is wrong in a quantised checkpoint is refused with the tensor's name and the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file

from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.mxfp4 import unpack
from tests.support.packers import awq, fp8, gptq, int8_rows
from tests.support.quantised import change, checkpoint, load
from tests.unit.models.test_loader import edit, save

GPTQ: Final = {"quant_method": "gptq", "bits": 4, "group_size": 16}
UP: Final = "model__layers__1__mlp__up_proj__"
NAME: Final = r"model\.layers\.1\.mlp\.up_proj\."


def part(folder: Path, name: str) -> torch.Tensor:
    return load_file(folder / "model.safetensors")[(UP + name).replace("__", ".")]


def with_value(tensor: torch.Tensor, value: float) -> torch.Tensor:
    tensor[0, 1] = value
    return tensor


@pytest.fixture(params=["as codes", "in plain numbers"])
def use(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    """Load a checkpoint and use its weights."""

    def use(folder: Path) -> object:
        if request.param == "as codes":
            return accelerate_cpu(load(folder), torch.float32)
        return load(folder, dtype="float32")

    return use


@pytest.mark.parametrize("missing", ["qzeros", "scales"])
def test_a_missing_part_is_named(tmp_path: Path, missing: str) -> None:
    checkpoint(tmp_path, "llama", gptq, GPTQ)
    change(tmp_path, **{UP + missing: None})
    with pytest.raises(
        ModelLoadError, match=rf"{NAME}qweight cannot be converted: {NAME}{missing} is missing"
    ):
        load(tmp_path)


@pytest.mark.parametrize("left", ["qzeros", "scales", "g_idx"])
def test_a_part_without_codes_is_named(tmp_path: Path, left: str) -> None:
    checkpoint(tmp_path, "llama", gptq, GPTQ)
    for name in {"qweight", "qzeros", "scales", "g_idx"} - {left}:
        change(tmp_path, **{UP + name: None})
    change(tmp_path, **{UP + "weight": torch.ones(64, 32)})
    with pytest.raises(ModelLoadError, match=rf"{NAME}{left} cannot be .* belongs to codes .* not there"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "a scale is not finite"),
        (float("inf"), "not finite"),
        (0.0, "a scale is zero although"),
    ],
)
def test_a_scale_that_cannot_be_right_is_named(
    tmp_path: Path, use: Callable[[Path], object], value: float, reason: str
) -> None:
    checkpoint(tmp_path, "llama", gptq, GPTQ)
    change(tmp_path, **{UP + "scales": with_value(part(tmp_path, "scales"), value)})
    with pytest.raises(ModelLoadError, match=rf"{NAME}weight cannot be converted: .*{reason}.*{NAME}scales"):
        use(tmp_path)


def test_codes_that_are_no_numbers_are_named(tmp_path: Path, use: Callable[[Path], object]) -> None:
    checkpoint(tmp_path, "llama", fp8, {"quant_method": "fp8"})
    codes = part(tmp_path, "weight").float()
    change(tmp_path, **{UP + "weight": with_value(codes, float("nan")).to(torch.float8_e4m3fn)})
    with pytest.raises(ModelLoadError, match=rf"{NAME}weight cannot be converted: a code is not a number"):
        use(tmp_path)


def test_an_exponent_that_is_no_number_is_refused() -> None:
    scales = torch.tensor([[127], [255]], dtype=torch.uint8)
    matrix = unpack({"blocks": torch.zeros(2, 1, 16, dtype=torch.uint8), "scales": scales})
    with pytest.raises(ValueError, match="a scale is not finite"):
        matrix.dequantise(torch.float32)


@pytest.mark.parametrize("value", [-1, 2])
def test_a_group_that_does_not_exist_is_named(
    tmp_path: Path, use: Callable[[Path], object], value: int
) -> None:
    checkpoint(tmp_path, "llama", gptq, GPTQ)
    order = part(tmp_path, "g_idx")
    order[3] = value
    change(tmp_path, **{UP + "g_idx": order})
    with pytest.raises(ModelLoadError, match=rf"{NAME}weight .* group outside 0 to 1 .*{NAME}g_idx"):
        use(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("scales", torch.ones(3, 64).half(), r"scales .* its shape is \[3, 64\], not \[2, 64\]"),
        ("scales", torch.ones(2, 64).int(), "scales .* it is of type I32, not F16"),
        ("qzeros", torch.ones(2, 9).int(), r"qzeros .* its shape is \[2, 9\], not \[2, 8\]"),
        ("g_idx", torch.zeros(31).int(), r"g_idx .* its shape is \[31\], not \[32\]"),
        ("qweight", torch.ones(4, 64, dtype=torch.int64), "qweight .* it is of type I64, not I32"),
        ("weight", torch.ones(64, 32), "weight .* a second time, as codes"),
    ],
)
def test_a_part_of_another_shape_or_type_is_named(
    tmp_path: Path, name: str, tensor: torch.Tensor, reason: str
) -> None:
    checkpoint(tmp_path, "llama", gptq, GPTQ)
    change(tmp_path, **{UP + name: tensor})
    with pytest.raises(ModelLoadError, match=NAME + reason):
        load(tmp_path)


def test_groups_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", awq, {"quant_method": "awq", "bits": 4, "group_size": 24})
    with pytest.raises(ModelLoadError, match=r"qweight .* groups of 24 do not divide its 64 columns"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("weight_packed", torch.ones(64, 4).int()),
        ("weight", torch.ones(64, 32).to(torch.uint8)),
        ("weight", torch.ones(64, 32).to(torch.int32)),
    ],
)
def test_codes_that_no_rule_takes_are_refused_by_name(
    tmp_path: Path, name: str, tensor: torch.Tensor
) -> None:
    checkpoint(tmp_path, "llama", fp8, {"quant_method": "fp8"})
    change(tmp_path, **{UP + "weight": None, UP + "weight_scale": None, UP + name: tensor})
    with pytest.raises(ModelLoadError, match=NAME + name):
        load(tmp_path)


def test_a_tensor_that_a_layer_does_not_use_is_refused_whatever_its_name(tmp_path: Path) -> None:
    """Such as AWQ's scales of an activation function."""
    checkpoint(tmp_path, "llama", fp8, {"quant_method": "fp8"})
    change(tmp_path, model__layers__0__mlp__act__smooth=torch.ones(64))
    with pytest.raises(ModelLoadError, match=r"do not use, such as model\.layers\.0\.mlp\.act\.smooth"):
        load(tmp_path)


def test_codes_without_a_quantization_config_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", fp8, {"quant_method": "fp8"})
    edit(tmp_path / "config.json", quantization_config=None)
    with pytest.raises(ModelLoadError, match=r"proj\.weight is of type F8_E4M3, and config\.json has no"):
        load(tmp_path)


def test_a_bias_of_zeros_is_dropped_and_another_is_refused(tmp_path: Path) -> None:
    """AutoGPTQ wrote biases for models that have none."""
    checkpoint(tmp_path, "llama", gptq, GPTQ)
    change(tmp_path, **{UP + "bias": torch.zeros(64)})
    load(tmp_path)
    change(tmp_path, **{UP + "bias": torch.ones(64)})
    with pytest.raises(ModelLoadError, match=rf"do not use, such as {NAME}bias"):
        load(tmp_path)


def test_scales_of_activations_and_of_a_cache_are_named_in_the_log(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", fp8, {"quant_method": "fp8", "activation_scheme": "static"})
    change(
        tmp_path,
        **{UP + "input_scale": torch.ones(()), "model__layers__0__self_attn__k_scale": torch.ones(())},
    )
    lines: list[str] = []
    load(tmp_path, lines, dtype="bfloat16", quantization="int8")
    text = "\n".join(lines)
    assert "1 scales of activations are not used, such as model.layers.1.mlp.up_proj.input_scale" in text
    assert "1 scales of a quantised KV cache are not used, such as model.layers.0.self_attn.k_scale" in text
    assert "converting 14 weights from FP8 to bfloat16" in text
    assert "quantization int8 rounds its weights a second time" in text


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "hqq"}, "quantised as hqq, which is not read here; choose .*awq.*or with 16-bit"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quantised as modelopt W4A8_AWQ"),
        ({"bits": 4}, "quantised as an unnamed format"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "GPTQ with bits 5"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size 0"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, "version 'gemv'"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "AWQ with bits 8"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size \[128\]"),
        (compressed("mxfp4-pack-quantized"), "compressed-tensors' mxfp4-pack-quantized"),
        (compressed("int-quantized", strategy="tensor_group"), "strategy 'tensor_group'"),
        (
            {**compressed("int-quantized"), "sparsity_config": {"format": "sparse-24"}},
            "sparse as 'sparse-24'",
        ),
        ({"quant_method": "compressed-tensors"}, "no group of config_groups describes weights"),
        (
            {**compressed("int-quantized"), "transform_config": {"config_groups": {"R1": {}}}},
            "transform_config turns activations",
        ),
    ],
)
def test_a_scheme_that_is_not_read_is_refused_by_its_name(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    save(tmp_path)
    edit(tmp_path / "config.json", quantization_config=settings)
    with pytest.raises(ModelLoadError, match=f"LlamaForCausalLM cannot be served: .*{reason}"):
        load(tmp_path)


def test_integers_without_the_zeros_that_their_scheme_has_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", int8_rows, compressed("int-quantized", strategy="channel", symmetric=False))
    with pytest.raises(ModelLoadError, match=r"proj\.weight cannot .*weight_zero_point is missing"):
        load(tmp_path)


def test_a_layer_that_no_group_names_is_refused(tmp_path: Path) -> None:
    settings = compressed("int-quantized", strategy="channel")
    settings["config_groups"]["group_0"]["targets"] = ["re:.*self_attn.*"]
    checkpoint(tmp_path, "llama", int8_rows, settings)
    with pytest.raises(ModelLoadError, match=r"mlp\.down_proj\.weight .* no group .* names its layer"):
        load(tmp_path)
