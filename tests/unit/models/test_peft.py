"""Folders in PEFT's layout: plain LoRA is read with its scale, all else is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from serve_app.models.adapters import Accepts
from serve_app.models.errors import ModelLoadError
from serve_app.models.peft import find_folder, read_folder
from tests.support.adapters import Shapes

SHAPES: Shapes = {
    (0, "q_proj"): (24, 16),
    (0, "k_proj"): (8, 16),
    (0, "v_proj"): (8, 16),
    (1, "q_proj"): (24, 16),
    (1, "down_proj"): (16, 40),
}
ACCEPTS = Accepts(SHAPES, 8, torch.float32)
PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "bias": "none",
    "target_modules": "all-linear",
}
Q0 = "base_model.model.model.layers.0.self_attn.q_proj"
DOWN1 = "base_model.model.model.layers.1.mlp.down_proj"


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        f"{Q0}.lora_A.weight": torch.randn(4, 16),
        f"{Q0}.lora_B.weight": torch.randn(24, 4),
        f"{DOWN1}.lora_A.weight": torch.randn(4, 40).bfloat16(),
        f"{DOWN1}.lora_B.weight": torch.randn(16, 4).bfloat16(),
    }


def write(folder: Path, saved: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | config))
    save_file(tensors() if saved is None else saved, folder / "adapter_model.safetensors")
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_folder(folder, ACCEPTS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "scale"), [({}, 2.0), ({"use_rslora": True}, 8 / math.sqrt(4)), ({"lora_alpha": 1.0}, 0.25)]
)
def test_plain_lora_is_read_with_its_scale_in_b(
    tmp_path: Path, changes: dict[str, Any], scale: float
) -> None:
    found = {(each.layer, each.module): each for each in read_folder(write(tmp_path, **changes), ACCEPTS)}
    assert list(found) == [(0, "q_proj"), (1, "down_proj")]
    saved = tensors()
    torch.testing.assert_close(found[0, "q_proj"].a, saved[f"{Q0}.lora_A.weight"], rtol=0, atol=0)
    torch.testing.assert_close(found[0, "q_proj"].b, saved[f"{Q0}.lora_B.weight"] * scale)
    torch.testing.assert_close(found[1, "down_proj"].b, saved[f"{DOWN1}.lora_B.weight"].float() * scale)


def test_modules_side_by_side_are_taken_apart(tmp_path: Path) -> None:
    b = torch.randn(40, 4)
    path = "base_model.model.model.layers.0.self_attn.qkv_proj"
    saved = {f"{path}.lora_A.weight": torch.randn(4, 16), f"{path}.lora_B.weight": b}
    found = read_folder(write(tmp_path, saved), ACCEPTS)
    assert [each.module for each in found] == ["q_proj", "k_proj", "v_proj"]
    torch.testing.assert_close(torch.cat([each.b for each in found]), b * 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("peft_type", "IA3"),
        ("use_dora", True),
        ("bias", "all"),
        ("lora_bias", True),
        ("fan_in_fan_out", True),
        ("modules_to_save", ["lm_head"]),
        ("rank_pattern", {"q_proj": 8}),
        ("alpha_pattern", {"q_proj": 8}),
        ("trainable_token_indices", [1]),
        ("layer_replication", [[0, 2]]),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"),
        ("r", 0),
        ("r", 9),
        ("r", True),
        ("r", None),
        ("lora_alpha", None),
        ("lora_alpha", math.inf),
    ],
)
def test_what_is_more_than_plain_lora_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    assert key in refused(write(tmp_path, **{key: value}))


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("base_model.model.lm_head.lora_A.weight", torch.zeros(4, 16), "lm_head"),
        (f"{Q0}.lora_magnitude_vector", torch.zeros(24), "lora_magnitude_vector"),
        (f"{Q0}.lora_B.bias", torch.zeros(24), "lora_B.bias"),
        (f"{Q0}.lora_B.weight", torch.zeros(23, 4), "q_proj of layer 0 has (4, 16) and (23, 4)"),
        (f"{Q0}.lora_A.weight", torch.zeros(3, 16), "with r 4 this model takes (4, 16) and (24, 4)"),
        (f"{Q0}.lora_A.weight", torch.full((4, 16), torch.nan), "not finite"),
        (f"{Q0.replace('.0.', '.2.')}.lora_A.weight", torch.zeros(4, 16), "no q_proj in layer 2"),
        (f"{Q0.replace('q_proj', 'c_attn')}.lora_A.weight", torch.zeros(4, 16), "no c_attn in layer 0"),
        (f"{Q0.replace('.0.', '.1.')}.lora_A.weight", torch.zeros(4, 16), "lacks its lora_A or lora_B"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, name: str, tensor: torch.Tensor, words: str
) -> None:
    assert words in refused(write(tmp_path, tensors() | {name: tensor}))


def test_only_safetensors_are_opened(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    assert "no adapter_model.safetensors" in refused(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x80\x04broken")
    assert "could not be read" in refused(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    assert "is not JSON" in refused(tmp_path)


def test_demo_lora_is_found_and_a_path_that_is_wrong_is_named(tmp_path: Path) -> None:
    assert find_folder("demo:demo-lora").name == "demo-lora"
    assert find_folder(str(write(tmp_path))) == tmp_path.resolve()
    with pytest.raises(ModelLoadError, match="'demo:nothing' is no folder"):
        find_folder("demo:nothing")


def test_demo_models_stay_small() -> None:
    folder = find_folder("demo:demo-lora")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1.5e6
    assert sum(path.stat().st_size for path in folder.parent.glob("demo-*/**/*") if path.is_file()) < 25e6
