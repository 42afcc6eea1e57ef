"""How layers with a state are divided among ranks: by heads or channels, each with its own part of the state.

Channels of a convolution are those of the linears before it, in the same order.
"""

from __future__ import annotations

from typing import Any

import torch

from serve_app.models.split.share import NotDivided, Part, Share, Side


def gated_delta(part: Part) -> None:
    """Heads of values, and the heads of queries and keys that serve them. Raises NotDivided."""
    module: Any = part.module
    heads = part.evenly(module.num_v_heads, "value heads")
    key_heads = part.heads(module.num_k_heads, "key heads")
    keys, values = _times(key_heads, module.head_k_dim), _times(heads, module.head_v_dim)
    if "in_proj_qkvz" in part:  # by heads of keys
        for name in ("in_proj_qkvz", "in_proj_ba"):
            part.evenly(module.num_k_heads, "key heads")
            part.outputs(name, part.evenly(part.features(name)[1], "outputs"))
    for name, sides in (
        ("in_proj_qkv", (keys, keys, values)),
        ("in_proj_z", (values,)),
        ("in_proj_b", (heads,)),
        ("in_proj_a", (heads,)),
        ("q_proj", (keys,)),
        ("k_proj", (keys,)),
        ("v_proj", (values,)),
        ("g_proj", (values,)),
        ("a_proj", (heads,)),
        ("b_proj", (heads,)),
        ("conv1d", (keys, keys, values)),
    ):
        if name in part:
            part.outputs(name, *sides)
    for name in ("A_log", "dt_bias"):
        part.by_heads(name, heads)
    part.inputs(part.first(("out_proj", "o_proj")), values)
    part.counts |= {"num_v_heads": heads[1], "num_k_heads": key_heads[1]}
    part.counts |= {"key_dim": keys[1], "value_dim": values[1], "conv_dim": 2 * keys[1] + values[1]}


def kimi_delta(part: Part) -> None:
    """Heads, of which each number has its own decay. Raises NotDivided."""
    module: Any = part.module
    heads = part.evenly(module.num_heads, "heads")
    numbers = _times(heads, module.head_dim)
    for name in ("q_proj", "k_proj", "v_proj", "g_proj", "g_b_proj"):
        if name in part:
            part.outputs(name, numbers)
    part.outputs("b_proj", heads)
    part.outputs("conv1d", numbers, numbers, numbers)
    part.inputs("o_proj", numbers)
    gate = Part(module.forget_gate, part.ranks)
    gate.outputs(gate.first(("f_b_proj", "f_proj")), numbers)
    gate.by_heads("A_log", heads)
    gate.by_heads("dt_bias", numbers)
    part.shares.update((f"forget_gate.{name}", share) for name, share in gate.shares.items())
    counts = {"num_heads": heads[1], "qkv_dim": numbers[1]}
    part.counts |= {**counts, "conv_dim": 3 * numbers[1]}
    part.counts |= {f"forget_gate.{name}": count for name, count in counts.items()}


def mamba2(part: Part) -> None:
    """Heads, and the groups of inputs and outputs of states that serve them. Raises NotDivided."""
    module: Any = part.module
    heads = part.evenly(module.num_heads, "heads of a state")
    groups = part.heads(module.n_groups, "groups of a state")
    inner = part.evenly(module.intermediate_size, "channels")
    grouped = _times(groups, module.ssm_state_size)
    part.outputs("in_proj", inner, inner, grouped, grouped, heads)
    if isinstance(getattr(module, "mup_vector", None), torch.Tensor):  # a factor of each of those outputs
        part.buffers["mup_vector"] = Share(2, part.shares["in_proj.weight"].sides)
    part.outputs("conv1d", inner, grouped, grouped)
    for name in ("A_log", "D", "dt_bias"):
        part.by_heads(name, heads)
    part.inputs("out_proj", inner)
    part.counts |= {"num_heads": heads[1], "n_groups": groups[1], "intermediate_size": inner[1]}
    part.counts["conv_dim"] = inner[1] + 2 * grouped[1]
    if hasattr(module, "groups_time_state_size"):
        part.counts["groups_time_state_size"] = grouped[1]
    norm = module.norm
    if not hasattr(norm, "weight"):
        return
    part.numbers("norm.weight", 0, inner)
    if groups[0] < part.ranks:
        part.norms["norm"] = part.ranks // groups[0]
    if hasattr(norm, "group_size"):
        if norm.group_size * module.n_groups != module.intermediate_size:
            raise NotDivided(f"{type(norm).__name__} has groups other than those of the states")
        part.counts["norm.group_size"] = inner[1] // groups[1]
    elif hasattr(norm, "n_groups"):
        part.counts["norm.n_groups"] = groups[1]


def mamba(part: Part) -> None:
    """Channels, each with its own state; what they read and write is a sum over ranks. Raises NotDivided."""
    inner = part.evenly(int(part.features("out_proj")[0]), "channels")
    part.outputs("in_proj", inner, inner)
    part.outputs("conv1d", inner)
    part.inputs("x_proj", inner, at_once=True)
    part.outputs("dt_proj", inner)
    for name in ("A_log", "D"):
        part.numbers(name, 0, inner)
    part.inputs("out_proj", inner)
    part.count(inner, "intermediate_size")


def lightning(part: Part) -> None:
    """Heads, each with a rate of decay. Raises NotDivided."""
    module: Any = part.module
    heads = part.evenly(module.num_attention_heads, "heads")
    numbers = _times(heads, module.head_dim)
    part.outputs("qkv_proj", _times(numbers, 3))
    part.outputs("output_gate", numbers)
    part.inputs("out_proj", numbers)
    part.numbers("norm.weight", 0, numbers)
    part.norms["norm"] = part.ranks
    part.buffers |= {name: Share(0, (heads,)) for name in ("slope_rate", "query_decay", "key_decay")}
    part.buffers["diagonal_decay"] = Share(1, (heads,))
    part.counts["num_attention_heads"] = heads[1]


def short_convolution(part: Part) -> None:
    """Channels. Raises NotDivided."""
    inner = part.evenly(part.features("out_proj")[0], "channels")
    part.outputs("in_proj", inner, inner, inner)
    part.outputs("conv", inner)
    part.inputs("out_proj", inner)


def _times(side: Side, size: int) -> Side:
    return side[0] * size, side[1] * size
