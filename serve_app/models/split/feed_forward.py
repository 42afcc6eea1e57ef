"""How MLPs and experts are divided among ranks: by their inner width, or whole experts."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.models.split.share import NotDivided, Part

UP: Final = ("gate_proj", "up_proj", "w1", "w3", "fc1", "c_fc", "dense_h_to_4h")
UP_JOINED: Final = ("gate_up_proj", "input_linear", "Wi")  # gates and ups side by side
DOWN: Final = ("down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h", "output_linear", "Wo")
WIDTHS: Final = ("intermediate_size", "intermediate_dim", "expert_dim", "ffn_hidden_size")


def is_mlp(part: Part) -> bool:
    ups = [name for name in (*UP, *UP_JOINED) if name in part]
    return bool(ups) and any(name in part for name in DOWN)


def mlp(part: Part) -> None:
    """Gates and ups by their outputs, downs by their inputs. Raises NotDivided."""
    down = part.first(DOWN)
    width = part.evenly(part.features(down)[0], "inner numbers of an MLP")
    for name in (*UP, *UP_JOINED):
        if name in part:
            sides = part.features(name)[1] // width[0]
            part.outputs(name, *[width] * sides)
    part.inputs(down, width)
    part.count(width, *WIDTHS)


def is_experts(part: Part) -> bool:
    weight = part.module._parameters.get("down_proj")
    return weight is not None and weight.dim() == 3


def experts(part: Part, *, whole: bool) -> None:
    """All experts by their inner width, or with `whole` some of the experts. Raises NotDivided."""
    module, kind = part.module, type(part.module).__name__
    if not hasattr(module, "is_transposed") and hasattr(module, "identity_expert"):
        raise NotDivided(f"{kind} has experts that compute nothing")
    up = part.first(("gate_up_proj", "up_proj"))
    biases = [name for name in (f"{up}_bias", "down_proj_bias") if name in part]
    if whole:
        if not hasattr(module, "is_transposed"):
            raise NotDivided(f"{kind} computes its experts by code of its own")
        count = part.evenly(len(module.get_parameter("down_proj")), "experts")
        for name in (up, "down_proj", *biases):
            part.numbers(name, 0, count)
        part.count(count, "num_experts")
        part.experts = count[1]
        part.writes.append("down_proj")
        return
    if getattr(module, "has_post_expert_norm", False):
        raise NotDivided(f"{kind} normalises the output of each expert")
    ups, downs = module.get_parameter(up), module.get_parameter("down_proj")
    transposed = getattr(module, "is_transposed", _reads_columns(ups, downs))
    width = part.evenly(downs.shape[1 if transposed else 2], "inner numbers of an expert")
    sides = [width] * (ups.shape[2 if transposed else 1] // width[0])
    if not getattr(module, "is_concatenated", True):  # gates and ups in turn
        sides = [(sum(whole for whole, _ in sides), sum(own for _, own in sides))]
    part.numbers(up, 2 if transposed else 1, *sides)
    part.numbers("down_proj", 1 if transposed else 2, width)
    part.writes.append("down_proj")
    if biases[:1] == [f"{up}_bias"]:
        part.numbers(biases[0], 1, *sides)
    if "down_proj_bias" in biases:
        part.once("down_proj_bias")
    part.count(width, *WIDTHS)


def _reads_columns(ups: torch.Tensor, downs: torch.Tensor) -> bool:
    """Whether matrices of experts are [inputs, outputs], which their shapes show."""
    return ups.shape[1] == downs.shape[2] and ups.shape[2] in (downs.shape[1], 2 * downs.shape[1])
