"""Layers with a gated delta rule in GGUF files: the names of their tensors, their settings, and their heads.

Each head of keys may have several heads of values. Transformers has those of a head of keys side by side.
llama.cpp has the first of every head of keys, then the second ones, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from serve_app.models.gguf.changes import GROUPED, GROUPED_COLUMNS, LOG, Change
from serve_app.models.gguf.facts import Facts

NAMES: Final = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
}
_AFTER_KEYS: Final = ("attn_qkv", "ssm_conv1d")  # rows of queries and keys, then those of values
_EACH: Final = ("ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt.bias")  # a row for each head of values


def settings_of(facts: Facts) -> dict[str, Any]:
    """Of the layers, as config.json has them; those that only draft are left out."""
    count = facts.integer("block_count") - drafting_layers(facts)
    interval = facts.integer("full_attention_interval", 4)
    states = facts.value("attention.recurrent_layers", [bool((each + 1) % interval) for each in range(count)])
    heads = facts.integer("ssm.time_step_rank")
    wide = facts.integer("ssm.inner_size")
    if wide % heads or heads % facts.integer("ssm.group_count"):
        raise facts.error(f"{heads} heads of values do not fit its ssm.inner_size and ssm.group_count")
    states = states if isinstance(states, list) else [states] * count
    return {
        "num_hidden_layers": count,
        "layer_types": ["linear_attention" if each else "full_attention" for each in states[:count]],
        "linear_conv_kernel_dim": facts.integer("ssm.conv_kernel"),
        "linear_key_head_dim": facts.integer("ssm.state_size"),
        "linear_value_head_dim": wide // heads,
        "linear_num_key_heads": facts.integer("ssm.group_count"),
        "linear_num_value_heads": heads,
    }


def drafting_layers(facts: Facts) -> int:
    """The layers at the end that only guess tokens. Raises ModelLoadError for a count that cannot be."""
    count = facts.value("nextn_predict_layers", 0)
    if type(count) is not int or not 0 <= count < facts.integer("block_count"):
        raise facts.error(f"its setting {facts.architecture}.nextn_predict_layers is {count!r}")
    return count


def changes_of(name: str, config: Mapping[str, Any]) -> tuple[Change, ...]:
    """How the tensor `name` of a layer differs from that of transformers."""
    log: tuple[Change, ...] = ((LOG,),) if name == "ssm_a" else ()
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size, each = config["linear_value_head_dim"], values // keys
    leaf = name.removesuffix(".weight")
    if each == 1:
        return log
    if leaf in _AFTER_KEYS:
        return ((GROUPED, keys, each, size, 2 * keys * config["linear_key_head_dim"]),)
    if leaf == "attn_gate":
        return ((GROUPED, keys, each, size, 0),)
    if leaf in _EACH:
        return (*log, (GROUPED, keys, each, 1, 0))
    return ((GROUPED_COLUMNS, keys, each, size),) if leaf == "ssm_out" else ()
