"""How a step is divided among programs of the attention kernels: once a step, the same in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.transfer import send

PART: Final = 256  # tokens of a decoding sequence that are one piece of work


@dataclass(frozen=True, slots=True)
class Decodes:
    """The sequences that compute one row, and their parts: one list of work over all of them."""

    rows: torch.Tensor  # [D, 2] int32: a sequence, and its row in the batch
    part_start: torch.Tensor  # [D+1] int32: the parts of d are part_start[d] .. part_start[d+1]-1
    owners: torch.Tensor  # [at least as many as parts] int32: d of each part; D behind the last one

    @property
    def most_parts(self) -> int:
        return self.owners.shape[0]


def tiles_of(context: ForwardContext, rows_a_tile: int) -> torch.Tensor | None:
    """[tiles, 2] int32, a sequence and the first of its rows, of all sequences with several rows.

    Longest tiles first: a program's work grows with what its rows see. None: there is no such sequence.
    """
    tiles: list[tuple[int, int, int]] = []
    for sequence, (rows, length) in enumerate(zip(context.query_lens, context.lens, strict=True)):
        if rows > 1:
            past = length - rows
            tiles += [(-(past + first), sequence, first) for first in range(0, rows, rows_a_tile)]
    tiles.sort()
    pairs = [(sequence, first) for _, sequence, first in tiles]
    return _pairs(pairs, context.slots.device) if pairs else None


def decodes_of(context: ForwardContext) -> Decodes | None:
    """The sequences with one row; None: there are none."""
    decodes: list[tuple[int, int]] = []
    parts, row = 0, 0
    for sequence, (rows, length) in enumerate(zip(context.query_lens, context.lens, strict=True)):
        if rows == 1:
            decodes.append((sequence, row))
            parts += -(-length // PART)
        row += rows
    if not decodes:
        return None
    lens = context.context_lens
    if len(decodes) == context.num_sequences:
        return _divide(_same_rows(lens), lens, parts)
    pairs = _pairs(decodes, lens.device)
    return _divide(pairs, lens.index_select(0, pairs[:, 0]), parts)


def lasting_decodes(context: ForwardContext, most_parts: int) -> Decodes:
    """Of a context whose sequences all have one row, by work of the device alone.

    A graph that recorded it divides whatever lengths the context's tensors hold when it is replayed, if
    they have at most `most_parts` parts.
    """
    return _divide(_same_rows(context.context_lens), context.context_lens, most_parts)


def _divide(rows: torch.Tensor, lens: torch.Tensor, most_parts: int) -> Decodes:
    ends = torch.cumsum((lens + (PART - 1)) // PART, 0, dtype=torch.int32)
    parts = torch.arange(most_parts, dtype=torch.int32, device=lens.device)
    return Decodes(
        rows=rows,
        part_start=torch.nn.functional.pad(ends, (1, 0)),
        owners=torch.searchsorted(ends, parts, right=True, out_int32=True),
    )


def _same_rows(lens: torch.Tensor) -> torch.Tensor:
    """Every sequence is its own row."""
    each = torch.arange(lens.shape[0], dtype=torch.int32, device=lens.device)
    return torch.stack([each, each], dim=1)


def _pairs(pairs: list[tuple[int, int]], device: torch.device) -> torch.Tensor:
    return send(device, np.array(pairs, dtype=np.int32))[0]
