"""The operator's LoRA adapters: folders in PEFT's layout -> checked matrices.

A feature beyond plain LoRA is refused by its name in adapter_config.json, since a refusal beats a wrong
answer. Safetensors only. Does not depend on the engine.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from serve_app.models.adapters import Accepts, Update, duplicated_place, split_modules
from serve_app.models.catalogue import DEMO_FOLDER, DEMO_PREFIX
from serve_app.models.errors import ModelLoadError

_TENSOR: Final = re.compile(
    r"(?:.*\.)?layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])(?:\.default)?\.weight"
)
_TRAINED_BASE: Final = ("pissa", "olora", "corda", "loftq")  # initialisations that change the model too
# Settings of PEFT that change what an adapter computes, each refused unless it has one of these values.
_PLAIN: Final[dict[str, tuple[object, ...]]] = {
    "bias": ("none",),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None, {}),
}


def find_folder(source: str) -> Path:
    """Where the adapter of a deploy file is: a folder, or `demo:NAME`. Raises ModelLoadError."""
    demo = source.startswith(DEMO_PREFIX)
    folder = DEMO_FOLDER / source.removeprefix(DEMO_PREFIX) if demo else Path(source).expanduser()
    if not (folder / "adapter_config.json").is_file():
        raise ModelLoadError(f"adapters: {source!r} is no folder with an adapter_config.json; check the path")
    return folder.resolve()


def read_folder(folder: Path, accepts: Accepts) -> list[Update]:
    """The adapter in a folder that PEFT wrote. Raises ModelLoadError that names what cannot be served."""
    rank, scale = _read_peft_config(folder / "adapter_config.json")
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise ModelLoadError(f"{folder} has no adapter_model.safetensors; save the adapter in that format")
    if not 1 <= rank <= accepts.max_rank:
        raise ModelLoadError(
            f"{folder}: r is {rank}; it must be from 1 to max_adapter_rank {accepts.max_rank}"
        )
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path} could not be read, fetch the adapter again: {error}") from error
    found: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        match = _TENSOR.fullmatch(key)
        if match is None:
            raise ModelLoadError(f"{path}: {key} is no adapter of a linear of a layer; it cannot be served")
        found.setdefault((int(match[1]), match[2]), {})[match[3]] = tensor
    if not found:
        raise ModelLoadError(f"{path} holds no tensors")
    updates: list[Update] = []
    for (layer, module), pair in sorted(found.items()):
        shape = accepts.whole(layer, module)
        if shape is None:
            raise ModelLoadError(
                f"{path}: this model has no {module} in layer {layer} that an adapter can change"
            )
        if pair.keys() != {"A", "B"}:
            raise ModelLoadError(f"{path}: {module} of layer {layer} lacks its lora_A or lora_B")
        n, k = shape
        a, b = pair["A"], pair["B"].float() * scale
        if a.shape != (rank, k) or b.shape != (n, rank):
            raise ModelLoadError(
                f"{path}: {module} of layer {layer} has {tuple(a.shape)} and {tuple(b.shape)}; with r {rank} "
                f"this model takes {(rank, k)} and {(n, rank)}"
            )
        if not (accepts.is_finite(a) and accepts.is_finite(b)):
            raise ModelLoadError(f"{path}: {module} of layer {layer} holds numbers that are not finite")
        updates += split_modules(Update(layer, module, a, b), accepts)
    if (place := duplicated_place(updates)) is not None:
        raise ModelLoadError(f"{path}: {place[1]} of layer {place[0]} is there twice")
    return updates


def _read_peft_config(path: Path) -> tuple[int, float]:
    """The rank, and the factor by which B @ A is scaled."""
    try:
        config: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} is not JSON: fetch the adapter again") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ModelLoadError(f"{path}: peft_type must be LORA")
    for key, plain in _PLAIN.items():
        if key in config and config[key] not in plain:
            raise ModelLoadError(
                f"{path}: {key} is {config[key]!r}, which is not supported; merge it into the model"
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_TRAINED_BASE):
        raise ModelLoadError(
            f"{path}: init_lora_weights {start!r} changes the model itself; convert it to plain LoRA"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ModelLoadError(f"{path}: r must be a whole number from 1, and lora_alpha a number")
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
