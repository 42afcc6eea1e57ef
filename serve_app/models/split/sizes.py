"""Whether a model's sizes can be divided among ranks, from config.json alone. Does not use torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.config import ModelConfig
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import read_json
from serve_app.models.footprint import local_folder

MOST_RANKS: Final = 64
OF_EXPERTS: Final = "moe_intermediate_size"
EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
WIDTHS: Final = (
    "intermediate_size",
    "intermediate_size_mlp",
    OF_EXPERTS,
    "shared_expert_intermediate_size",
)
# Heads of states, each with a part of the state of its own.
STATES: Final = ("linear_num_value_heads", "linear_num_heads", "mamba_n_heads", "mamba_num_heads")


def undivided(config: ModelConfig) -> tuple[str, str] | None:
    """The setting by which a model whose files are on this machine cannot be divided, and why; None if no
    reason is known."""
    folder = local_folder(config) if config.ranks > 1 else None
    if folder is None:
        return None
    try:
        shape = read_json(folder / "config.json")
        text = shape.get("text_config") or shape
        layers, stages = text.get("num_hidden_layers"), config.pipeline_parallel
        if isinstance(layers, int) and layers < stages:
            return "pipeline_parallel", f"its num_hidden_layers of {layers} are fewer than {stages} stages"
        reason = indivisible(text, config.tensor_parallel, whole_experts=config.expert_parallel)
        return None if reason is None else ("tensor_parallel", reason)
    except (OSError, ModelLoadError, AttributeError):
        return None  # the start says what is wrong with the files


def indivisible(shape: Mapping[str, Any], ranks: int, *, whole_experts: bool = False) -> str | None:
    """Why the heads, the widths or the experts of a model cannot be divided among `ranks`, and how many ranks
    there can be; None if they can.

    `shape`: the text part of config.json. `whole_experts`: each rank has some of the experts.
    """
    reason = _reason(shape, ranks, whole_experts=whole_experts)
    if reason is None:
        return None
    possible = [n for n in range(2, MOST_RANKS + 1) if _reason(shape, n, whole_experts=whole_experts) is None]
    return f"{reason}; tensor_parallel can be {', '.join(map(str, [1, *possible]))}"


def _reason(shape: Mapping[str, Any], ranks: int, *, whole_experts: bool) -> str | None:
    def odd(name: str) -> int | None:
        value = shape.get(name)
        return value if isinstance(value, int) and value % ranks else None

    for name in ("num_attention_heads", *STATES):
        if heads := odd(name):
            return f"its {name} of {heads} cannot be divided among {ranks} ranks"
    if (heads := odd("num_key_value_heads")) and ranks % heads:
        return f"its num_key_value_heads of {heads} can be neither divided among {ranks} ranks nor repeated"
    experts = next((name for name in EXPERTS if isinstance(shape.get(name), int)), None)
    for name in (*WIDTHS, *((experts,) if whole_experts and experts else ())):
        if (size := odd(name)) and not (whole_experts and name == OF_EXPERTS):
            return f"its {name} of {size} cannot be divided among {ranks} ranks"
    return None
