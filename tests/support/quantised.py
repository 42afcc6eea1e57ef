"""Quantised checkpoints, packed here by what each format's document says, and the numbers that they mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.models.loader import load_model
from tests.support.families import DELTA, small_config
from tests.support.tiny_models import make_model, tiny_config

SIZES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 64, "num_hidden_layers": 2},
    "qwen3_moe": {"moe_intermediate_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "gpt_oss": {"intermediate_size": 64, "num_hidden_layers": 2},
    "qwen3_5_text": {
        **DELTA,
        "head_dim": 8,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
}
KINDS: Final = ("llama", "qwen3_moe", "qwen3_5_text")  # dense, with experts, with states
_LINEARS: Final = ("_proj", ".in_proj_qkv", ".in_proj_z")
Tensors = dict[str, torch.Tensor]
# A module's name and its weight [N, K] -> the tensors that stand for it, and the numbers that they mean.
Packer = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]


def checkpoint(
    folder: Path,
    architecture: str,
    pack: Packer,
    settings: Mapping[str, Any],
    *,
    chosen: Callable[[str], bool] = lambda name: name.endswith(_LINEARS),
    shards: int = 1,
    **sizes: Any,
) -> PreTrainedModel:
    """Write a small model with the linears of the modules that are `chosen` packed; returns the model that
    has the numbers that these mean. `sizes`: settings of its configuration."""
    write_plain(folder, architecture, **sizes)
    packed: Tensors = {}
    meant: Tensors = {}
    for name, weight in load_file(folder / "plain" / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and weight.dim() == 2 and chosen(module):
            tensors, meant[name] = pack(module, weight)
            packed |= tensors
        else:
            packed[name] = meant[name] = weight
    assert len(packed) > len(meant), "no linear was chosen"
    return publish(folder, packed, meant, settings, shards=shards)


def write_plain(folder: Path, architecture: str, **sizes: Any) -> None:
    """Save a small model in `folder / "plain"`. `sizes`: settings of its configuration."""
    known = SIZES.get(architecture)
    config = small_config(architecture) if known is None else tiny_config(architecture, **{**known, **sizes})
    make_model(config).save_pretrained(folder / "plain")


def publish(
    folder: Path, packed: Tensors, meant: Tensors, settings: Mapping[str, Any], *, shards: int = 1
) -> PreTrainedModel:
    """Write `packed` as the checkpoint in `folder`; returns the model of `folder / "plain"` with the weights
    `meant`."""
    save_file(meant, folder / "plain" / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "plain" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    if shards == 1:
        save_file(packed, folder / "model.safetensors", {"format": "pt"})
    else:
        places = {
            name: f"model-{number % shards + 1:05}-of-{shards:05}.safetensors"
            for number, name in enumerate(packed)
        }
        for file in set(places.values()):
            save_file({n: packed[n] for n, f in places.items() if f == file}, folder / file, {"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder / "plain", dtype=torch.float32)
    return model.eval()


def load(folder: Path, lines: list[str] | None = None, **settings: Any) -> PreTrainedModel:
    config = ModelConfig(**{"name": "m", "source": str(folder), "device": "cpu", **settings})
    return load_model(config, (lines if lines is not None else []).append).module


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.arange(3, 20)[None], use_cache=False).logits
        return found


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Write tensors over those of the checkpoint, or beside them, or remove them; `__` is a dot."""
    changed = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        changed.pop(name.replace("__", "."), None)
        if tensor is not None:
            changed[name.replace("__", ".")] = tensor
    save_file(changed, folder / "model.safetensors", {"format": "pt"})


def bit_stream(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [R, C] -> int32 [R, ceil(C x bits / 32)]: the bits of each row one after the other."""
    places = codes.numpy().astype(np.uint8)[:, :, None] >> np.arange(bits, dtype=np.uint8) & 1
    row = places.reshape(len(codes), -1)
    row = np.pad(row, ((0, 0), (0, -row.shape[1] % 32)))
    return torch.from_numpy(np.packbits(row, axis=1, bitorder="little").view("<i4").copy())


def group_codes(
    weight: torch.Tensor, bits: int, group: int, *, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K] of 0 to 2^bits - 1, scales [N, G] as float16 has them, and zeros [N, G]."""
    rows, columns = weight.shape
    parts = weight.view(rows, columns // group, group)
    most = 2**bits - 1
    if symmetric:
        scales = (parts.abs().amax(2) / (2 ** (bits - 1))).clamp_min(1e-4)
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
        scales = ((high - low) / most).clamp_min(1e-4)
        zeros = (-low / scales).round()
    scales = scales.half().float()
    codes = ((parts / scales[..., None]).round() + zeros[..., None]).clamp(0, most)
    return codes.view(rows, columns), scales, zeros.clamp(0, most)


def meaning(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, groups: torch.Tensor
) -> torch.Tensor:
    """[N, K]; `groups` [K]: the group of each column."""
    return (codes - zeros[:, groups]) * scales[:, groups]
