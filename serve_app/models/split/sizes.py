"""Whether a model's sizes can be divided among ranks, from config.json alone. Does not use torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.config import ModelConfig
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import read_json
from serve_app.models.footprint import local_folder

WIDTHS: Final = (
    "intermediate_size",
    "intermediate_size_mlp",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


def undivided(config: ModelConfig) -> str | None:
    """Why a model whose files are on this machine cannot have this many ranks; None if no reason is known."""
    folder = local_folder(config) if config.tensor_parallel > 1 else None
    if folder is None:
        return None
    try:
        shape = read_json(folder / "config.json")
        return indivisible(shape.get("text_config") or shape, config.tensor_parallel)
    except (OSError, ModelLoadError, AttributeError):
        return None  # the start says what is wrong with the files


def indivisible(shape: Mapping[str, Any], ranks: int) -> str | None:
    """Why the heads or the widths of a model cannot be divided among `ranks`; None if they can.

    `shape`: the text part of config.json.
    """
    heads = shape.get("num_attention_heads")
    if isinstance(heads, int) and "kv_lora_rank" not in shape:  # whose attention every rank repeats
        if heads % ranks:
            return f"its {heads} attention heads cannot be divided among {ranks} ranks"
        kv_heads = shape.get("num_key_value_heads") or heads
        if isinstance(kv_heads, int) and kv_heads % ranks and ranks % kv_heads:
            return f"its {kv_heads} key-value heads can be neither divided among {ranks} ranks nor repeated"
    for name in WIDTHS:
        width = shape.get(name)
        if isinstance(width, int) and width % ranks:
            return f"its {name} of {width} cannot be divided among {ranks} ranks"
    return None
