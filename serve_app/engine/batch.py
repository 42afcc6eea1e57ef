"""Packs scheduled chunks into flat tensors. The only place where a step's tensors are made.

Sequences are packed one after another into rows of length T (no padding). For attention, `ForwardContext` has
the start of each sequence and the location of its cache.
"""

from __future__ import annotations

from array import array
from collections import abc
from dataclasses import dataclass
from operator import sub
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.engine.transfer import Array, send


class HostArrays(NamedTuple):
    """The inputs of a step on the host."""

    input_ids: Array  # [T] int64; 0 for a pending token
    positions: Array  # [T] int64
    slots: Array  # [T] int64
    logit_rows: Array  # [R] int64
    query_start: Array  # [S+1] int32
    context_lens: Array  # [S] int32
    block_tables: Array  # [S * max_blocks] int32
    wanted_start: Array  # [S+1] int32

    def batch(
        self,
        chunks: abc.Sequence[Chunk],
        block_size: int,
        device: torch.device,
        feeding: abc.Sequence[Array] = (),
        fed: Fed | None = None,
    ) -> Batch:
        """The step on `device`, in one copy, without a wait; `chunks` may leave out what a runner does not
        use.

        `feeding`: the places of pending tokens among `input_ids`, and among the tokens of `fed`.
        """
        ids, places, slots, rows, starts, lens, tables, wanted, *pending = send(device, *self, *feeding)
        if fed is not None and pending:
            targets, sources = pending
            ids.index_copy_(0, targets, fed.tokens.index_select(0, sources))
        some = len(rows) < len(ids)
        context = ForwardContext(
            query_start=starts,
            context_lens=lens,
            block_tables=tables.view(len(lens), -1),
            slots=slots,
            query_lens=_lengths(self.query_start),
            lens=tuple(self.context_lens.tolist()),
            block_size=block_size,
            wanted_start=wanted if some else None,
            wanted_lens=_lengths(self.wanted_start) if some else (),
        )
        return Batch(tuple(chunks), ids, places, rows, context, self, is_fed=bool(pending))


@dataclass(slots=True, frozen=True)
class Batch:
    """One step's input: T tokens of S sequences, with R rows of logits wanted."""

    chunks: tuple[Chunk, ...]
    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    logit_rows: torch.Tensor  # [R] int64, indices into T; chunk by chunk, in order
    context: ForwardContext
    arrays: HostArrays
    is_fed: bool = False  # some of `input_ids` are pending: only the device knows them


@dataclass(slots=True, frozen=True)
class ForwardResult:
    """Chunks that were computed together, and their logits [R, V] float32."""

    chunks: abc.Sequence[Chunk]
    logits: torch.Tensor


@dataclass(slots=True, frozen=True)
class Fed:
    """The last tokens of sequences, if the host does not know the values of these tokens yet."""

    tokens: torch.Tensor  # [S] int64
    rows: abc.Mapping[Sequence, int]


def build_batch(
    chunks: abc.Sequence[Chunk], block_size: int, device: torch.device, fed: Fed | None = None
) -> Batch:
    """Pack `chunks`; their block tables must already cover their last token.

    `fed` has the last tokens of those decodes whose token is so far only on the device. All inputs go to a
    device in one copy, without a wait.
    """
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    query_start, wanted_start = [0], [0]
    pending: list[tuple[int, Sequence]] = []
    row = 0
    for chunk in chunks:
        sequence, start, length = chunk.sequence, chunk.start, chunk.length
        table = sequence.block_table
        if length == 1:  # a decode: no slices, no ranges
            if start < len(sequence.token_ids):
                input_ids.append(sequence.token_ids[start])
            else:
                input_ids.append(0)
                pending.append((row, sequence))
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
        wanted_start.append(len(logit_rows))
    lens = tuple(chunk.end for chunk in chunks)
    width = -(-max(lens) // block_size)
    tables: list[int] = []
    for chunk, length in zip(chunks, lens, strict=True):
        used = -(-length // block_size)
        tables += chunk.sequence.block_table[:used]
        tables += [0] * (width - used)
    if pending and fed is None:
        raise ValueError("a token is pending, and nothing is fed to the step")
    known = [] if fed is None else [fed.rows[sequence] for _, sequence in pending]
    arrays = HostArrays(
        *(_int64(values) for values in (input_ids, positions, slots, logit_rows)),
        *(_int32(values) for values in (query_start, lens, tables, wanted_start)),
    )
    feeding = [_int64(values) for values in ([place for place, _ in pending], known)] if pending else []
    return arrays.batch(chunks, block_size, device, feeding, fed)


def _lengths(starts: Array) -> tuple[int, ...]:
    every = starts.tolist()
    return tuple(map(sub, every[1:], every))


def _slots(table: list[int], start: int, end: int, block_size: int) -> list[int]:
    """Cache slots of the positions start .. end-1, block by block."""
    slots: list[int] = []
    for i in range(start // block_size, -(-end // block_size)):
        first, base = i * block_size, table[i] * block_size
        slots += range(base + max(start - first, 0), base + min(end - first, block_size))
    return slots


# Through `array`, which reads a list of integers several times faster than numpy and torch.
def _int32(values: abc.Sequence[int]) -> npt.NDArray[np.int32]:
    return np.frombuffer(array("i", values), np.int32)


def _int64(values: list[int]) -> npt.NDArray[np.int64]:
    if not values:  # a buffer must not be empty; a step may want no logits
        return np.empty(0, np.int64)
    return np.frombuffer(array("q", values), np.int64)
