"""What llama.cpp's converter does to the tensors of a checkpoint, written after its source, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Written:
    """One tensor of a checkpoint as the converter writes it."""

    tensors: Mapping[str, torch.Tensor]  # by names that the gguf package knows
    back: Callable[[Sequence[torch.Tensor]], torch.Tensor]  # from the numbers of the same tensors


def written(name: str, weight: torch.Tensor, architecture: str, config: Mapping[str, Any]) -> Written:
    """`config`: config.json. Norms and dimensions of one are left as they are."""
    if architecture == "gpt-oss":
        return _gpt_oss(name, weight)
    if name.endswith("mlp.experts.gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        halves = {
            f"{stem}{half}_proj.weight": each
            for half, each in zip(("gate", "up"), weight.chunk(2, 1), strict=True)
        }
        return Written(halves, lambda found: torch.cat(list(found), 1))
    if name.endswith("mlp.experts.down_proj"):
        return Written({f"{name}.weight": weight}, lambda found: found[0])
    if "linear_attn." in name:
        return _linear_attention(name, weight, config)
    if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        return _ordered(name, weight, paired_rows(len(weight), heads))
    return Written({name: weight}, lambda found: found[0])


def _gpt_oss(name: str, weight: torch.Tensor) -> Written:
    if name.endswith("sinks"):
        return Written({f"{name}.weight": weight}, lambda found: found[0])
    if ".experts." not in name:
        return Written({name: weight}, lambda found: found[0])
    biased = name.endswith("_bias")
    stem, ending = name.removesuffix("_bias"), ".bias" if biased else ".weight"
    outputs = weight if biased else weight.mT.contiguous()  # before the inputs

    def back(found: torch.Tensor) -> torch.Tensor:
        return found if biased else found.mT.contiguous()

    if stem.endswith("down_proj"):
        return Written({stem + ending: outputs}, lambda found: back(found[0]))
    stem = stem.removesuffix("gate_up_proj")
    halves = {
        f"{stem}{half}_proj{ending}": outputs[:, part::2].contiguous()
        for part, half in enumerate(("gate", "up"))
    }
    return Written(halves, lambda found: back(torch.stack(list(found), 2).flatten(1, 2)))


def _linear_attention(name: str, weight: torch.Tensor, config: Mapping[str, Any]) -> Written:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    size = config["linear_value_head_dim"]
    before = 2 * keys * config["linear_key_head_dim"]  # rows of queries and keys

    def tiled(each: int, start: int = 0) -> torch.Tensor:
        heads = torch.arange(values * each).view(keys, values // keys, each)
        return torch.cat((torch.arange(start), start + heads.transpose(0, 1).flatten()))

    if name.endswith((".in_proj_qkv.weight", ".conv1d.weight")):
        return _ordered(name, weight, tiled(size, before))
    if name.endswith(".in_proj_z.weight"):
        return _ordered(name, weight, tiled(size))
    if name.endswith((".in_proj_a.weight", ".in_proj_b.weight")):
        return _ordered(name, weight, tiled(1))
    if name.endswith(".dt_bias"):
        return _ordered(name.replace(".dt_bias", ".dt_proj.bias"), weight, tiled(1))
    if name.endswith(".A_log"):
        made = _ordered(name, -torch.exp(weight.float()), tiled(1))
        return Written(made.tensors, lambda found: (-made.back(found)).log())
    if name.endswith(".out_proj.weight"):
        made = _ordered(name, weight.T, tiled(size))
        turned = {key: each.T.contiguous() for key, each in made.tensors.items()}
        return Written(turned, lambda found: made.back([found[0].T]).T.contiguous())
    return Written({name: weight}, lambda found: found[0])


def _ordered(name: str, weight: torch.Tensor, order: torch.Tensor) -> Written:
    """`order`: for each row of a file, which row of the checkpoint it is."""

    def back(found: Sequence[torch.Tensor]) -> torch.Tensor:
        made = torch.empty_like(found[0])
        made[order] = found[0]
        return made

    return Written({name: weight[order]}, back)


def paired_rows(rows: int, heads: int) -> torch.Tensor:
    """For each row of a file, which row of the checkpoint it is: the first of each half of a head, then the
    second ones, and so on."""
    size = rows // heads
    half = size // 2
    return torch.tensor(
        [
            head * size + part * half + place
            for head in range(heads)
            for place in range(half)
            for part in (0, 1)
        ]
    )
