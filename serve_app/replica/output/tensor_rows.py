"""Rows of tensors, as bytes: cut where an output is cut, and joined where it is delivered whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from serve_app.types import Tensor

GENERATION = "generation_logits"  # the tensor with a row for each output token


def rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some rows of a tensor of FP32."""
    width = 4 * math.prod(tensor.shape[1:])
    data = tensor.data[start * width : stop * width]
    return replace(tensor, shape=(len(data) // width, *tensor.shape[1:]), data=data)


def of_tokens(tensors: dict[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """The tensors of some tokens of a step; the prompt's tensors go with the first token."""
    kept = {name: tensor for name, tensor in tensors.items() if name != GENERATION and start == 0}
    if GENERATION in tensors and stop > start:
        kept[GENERATION] = rows(tensors[GENERATION], start, stop)
    return kept


def joined(steps: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Join the tensors of several steps as if they came from one step."""
    found: dict[str, list[Tensor]] = {}
    for step in steps:
        for name, tensor in step.items():
            found.setdefault(name, []).append(tensor)
    return {
        name: parts[0]
        if len(parts) == 1
        else replace(
            parts[0],
            shape=(sum(part.shape[0] for part in parts), *parts[0].shape[1:]),
            data=b"".join(part.data for part in parts),
        )
        for name, parts in found.items()
    }
