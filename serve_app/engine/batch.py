"""Scheduled chunks -> flat tensors. The only place where a step's tensors are made.

Sequences are packed one after another into rows of length T (no padding);
`ForwardContext` tells attention where each begins and where its cache lies.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.sequence import Chunk


@dataclass(slots=True, frozen=True)
class Batch:
    """One step's input: T tokens of S sequences, R rows of logits wanted."""

    chunks: tuple[Chunk, ...]
    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    logit_rows: torch.Tensor  # [R] int64, indices into T; chunk by chunk, in order
    context: ForwardContext


@dataclass(slots=True, frozen=True)
class ForwardResult:
    """Chunks that were computed together, and their logits [R, V] float32."""

    chunks: Sequence[Chunk]
    logits: torch.Tensor


def build_batch(chunks: Sequence[Chunk], block_size: int, device: torch.device) -> Batch:
    """Pack `chunks`, whose block tables must already cover their last token."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    query_start = [0]
    row = 0
    for chunk in chunks:
        sequence, start, length = chunk.sequence, chunk.start, chunk.length
        table = sequence.block_table
        if length == 1:  # a decode: no slices, no ranges
            input_ids.append(sequence.token_ids[start])
            positions.append(start)
            slots.append(table[start // block_size] * block_size + start % block_size)
        else:
            input_ids += sequence.token_ids[start : chunk.own_end]
            input_ids += chunk.draft
            positions += range(start, start + length)
            slots += _slots(table, start, start + length, block_size)
        logit_rows += range(row + chunk.first_logit - start, row + length)
        row += length
        query_start.append(row)
    lens = tuple(chunk.end for chunk in chunks)
    width = -(-max(lens) // block_size)
    tables: list[int] = []
    for chunk, length in zip(chunks, lens, strict=True):
        used = -(-length // block_size)
        tables += chunk.sequence.block_table[:used]
        tables += [0] * (width - used)
    context = ForwardContext(
        query_start=_int32(query_start, device),
        context_lens=_int32(lens, device),
        block_tables=_int32(tables, device).view(len(chunks), width),
        slots=_int64(slots, device),
        query_lens=tuple(chunk.length for chunk in chunks),
        lens=lens,
        block_size=block_size,
    )
    return Batch(
        chunks=tuple(chunks),
        input_ids=_int64(input_ids, device),
        positions=_int64(positions, device),
        logit_rows=_int64(logit_rows, device),
        context=context,
    )


def _slots(table: list[int], start: int, end: int, block_size: int) -> list[int]:
    """Cache slots of the positions start .. end-1, block by block."""
    slots: list[int] = []
    for i in range(start // block_size, -(-end // block_size)):
        first, base = i * block_size, table[i] * block_size
        slots += range(base + max(start - first, 0), base + min(end - first, block_size))
    return slots


# Through `array`, which reads a list of integers several times faster than torch.tensor.
def _int32(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.frombuffer(array("i", values), dtype=torch.int32).to(device, non_blocking=True)


def _int64(values: list[int], device: torch.device) -> torch.Tensor:
    if not values:  # a buffer must not be empty; a step may want no logits
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.frombuffer(array("q", values), dtype=torch.int64).to(device, non_blocking=True)
