"""How a step is divided among programs of the attention kernels: once a step, the same in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import triton

from serve_app.engine.attention.triton.dividing import divide, tile_prompts
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.transfer import send

PART: Final = 256  # tokens of a decoding sequence that are one piece of work
PARTS: Final = 64  # found by one program; each program reads all decodes,
CELLS: Final = 16_384  # so there are fewer where there are many decodes

_DIVIDE, _TILE_PROMPTS = Launcher(divide), Launcher(tile_prompts)


@dataclass(frozen=True, slots=True)
class Decodes:
    """All sequences that compute one row, and their parts, as one list of work."""

    each: torch.Tensor  # [D, 4] int32: a sequence, its row in the batch, its tokens, the first of its parts
    parts: torch.Tensor  # [at least as many as parts, 4] int32: as above, but the first token of the part
    count: torch.Tensor  # [1] int32: of parts

    @property
    def most_parts(self) -> int:
        return self.parts.shape[0]


def tiles_of(context: ForwardContext, rows_a_tile: int) -> torch.Tensor | None:
    """[tiles, 2] int32: the sequence and first row of each tile, for all sequences with several rows.

    Tiles with the most work, that is, with rows that see the most keys, come first. None if there is no such
    sequence.
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
    """The sequences with one row; None if there are none."""
    decodes: list[tuple[int, int]] = []
    parts, row = 0, 0
    for sequence, (rows, length) in enumerate(zip(context.query_lens, context.lens, strict=True)):
        if rows == 1:
            decodes.append((sequence, row))
            parts += -(-length // PART)
        row += rows
    if not decodes:
        return None
    pairs = None if len(decodes) == context.num_sequences else _pairs(decodes, context.slots.device)
    return _divide(context.context_lens, pairs, parts)


def lasting_decodes(context: ForwardContext, most_parts: int, *, mixed: bool = False) -> Decodes:
    """Computed on the device. `mixed`: sequences may have several rows; otherwise all of them have one.

    A recorded graph reads the lengths in the context's tensors each time it is replayed, and divides them
    into at most `most_parts` parts.
    """
    return _divide(context.context_lens, None, most_parts, context.query_start if mixed else None)


def lasting_tiles(context: ForwardContext, rows_a_tile: int, prompts: int) -> torch.Tensor:
    """As `tiles_of`, computed on the device: for up to `prompts` sequences with several rows.

    Tiles after the last one have sequence -1.
    """
    starts, sequences = context.query_start, context.context_lens.shape[0]
    most_tiles = context.slots.shape[0] // rows_a_tile + prompts
    tiles = starts.new_empty(most_tiles, 2)
    size, at_once = _search(sequences)
    _TILE_PROMPTS(
        (triton.cdiv(most_tiles, at_once),),
        *(starts, tiles, sequences, most_tiles),
        SIZE=size,
        AT_ONCE=at_once,
        ROWS=rows_a_tile,
    )
    return tiles


def _divide(
    lens: torch.Tensor, pairs: torch.Tensor | None, most_parts: int, starts: torch.Tensor | None = None
) -> Decodes:
    """`pairs` [D, 2] int32: a sequence, and its row in the batch; None: sequence i is row i.

    `starts` [S+1]: the rows at which sequences begin. Then the decodes are the sequences with one row, and
    their number D is S.
    """
    decodes = len(lens if pairs is None else pairs)
    made = Decodes(*(lens.new_empty(size) for size in ((decodes, 4), (most_parts, 4), (1,))))
    size, at_once = _search(decodes)
    _DIVIDE(
        (triton.cdiv(max(most_parts, 1), at_once),),
        *(lens, lens if pairs is None else pairs, lens if starts is None else starts),
        *(made.each, made.parts, made.count, decodes, most_parts),
        SIZE=size,
        AT_ONCE=at_once,
        PART=PART,
        PAIRS=pairs is not None,
        STARTS=starts is not None,
    )
    return made


def _search(sequences: int) -> tuple[int, int]:
    """How many lengths a program reads at a time (a power of two), and how many parts or tiles it writes."""
    size = triton.next_power_of_2(sequences)
    return size, max(1, min(PARTS, CELLS // size))


def _pairs(pairs: list[tuple[int, int]], device: torch.device) -> torch.Tensor:
    return send(device, np.array(pairs, dtype=np.int32))[0]
