"""How a step is divided among programs of the attention kernels: once a step, the same in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from serve_app.engine.forward_context import ForwardContext

PART: Final = 512  # tokens of a decoding sequence that one program reads


@dataclass(frozen=True, slots=True)
class Plan:
    """Sequences with one row decode; the others are cut into tiles of rows."""

    tiles: torch.Tensor  # [tiles, 2] int32: a sequence, and the first of its rows
    decodes: torch.Tensor  # [D, 2] int32: a sequence, and its row in the batch
    parts: int  # of PART tokens, of the longest decoding sequence


def plan(context: ForwardContext, rows_a_tile: int) -> Plan:
    """Longest tiles first: a program's work grows with what its rows see."""
    device = context.slots.device
    tiles: list[tuple[int, int, int]] = []
    decodes: list[tuple[int, int]] = []
    parts, row = 0, 0
    for sequence, (rows, length) in enumerate(zip(context.query_lens, context.lens, strict=True)):
        if rows == 1:
            decodes.append((sequence, row))
            parts = max(parts, -(-length // PART))
        else:
            past = length - rows
            tiles += [(-(past + first), sequence, first) for first in range(0, rows, rows_a_tile)]
        row += rows
    tiles.sort()
    return Plan(
        tiles=_pairs([(sequence, first) for _, sequence, first in tiles], device),
        decodes=_pairs(decodes, device),
        parts=parts,
    )


def _pairs(pairs: list[tuple[int, int]], device: torch.device) -> torch.Tensor:
    return torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2).to(device, non_blocking=True)
