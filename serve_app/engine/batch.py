"""Scheduled work -> flat tensors. The only place where a step's tensors are made.

Sequences are packed one after another into rows of length T (no padding);
`ForwardContext` tells attention where each begins and where its cache lies.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain

import torch

from serve_app.engine.sequence import Chunk


@dataclass(slots=True, frozen=True)
class ForwardContext:
    """Where the S packed sequences of a step are, in the batch and in the cache."""

    query_start: torch.Tensor  # [S+1] int32: sequence s owns rows query_start[s] .. query_start[s+1]-1
    context_lens: torch.Tensor  # [S] int32: tokens in the cache once this step has written its own
    block_tables: torch.Tensor  # [S, max_blocks] int32, padded with 0
    slots: torch.Tensor  # [T] int64: block * block_size + offset, where each row's K and V go
    query_lens: tuple[int, ...]  # the same lengths for Python loops
    lens: tuple[int, ...]
    block_size: int

    @property
    def num_sequences(self) -> int:
        return len(self.query_lens)

    @property
    def decode_only(self) -> bool:
        """Every sequence contributes exactly one token."""
        return max(self.query_lens) == 1


@dataclass(slots=True, frozen=True)
class Batch:
    """One step's input: T tokens of S sequences, R rows of logits wanted."""

    chunks: tuple[Chunk, ...]
    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    logit_rows: torch.Tensor  # [R] int64, indices into T; chunk by chunk, in order
    context: ForwardContext


def build_batch(chunks: Seq[Chunk], block_size: int, device: torch.device) -> Batch:
    """Pack `chunks`, whose block tables must already cover their last token."""
    input_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    query_start = [0]
    for chunk in chunks:
        table = chunk.sequence.block_table
        row = query_start[-1]
        input_ids += chunk.sequence.token_ids[chunk.start : chunk.end]
        positions += range(chunk.start, chunk.end)
        slots += (table[p // block_size] * block_size + p % block_size for p in range(chunk.start, chunk.end))
        logit_rows += range(row + chunk.first_logit - chunk.start, row + chunk.length)
        query_start.append(row + chunk.length)
    used = [-(-chunk.end // block_size) for chunk in chunks]
    width = max(used)
    tables = [
        chunk.sequence.block_table[:n] + [0] * (width - n) for chunk, n in zip(chunks, used, strict=True)
    ]

    def tensor(values: list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    lens = tuple(chunk.end for chunk in chunks)
    context = ForwardContext(
        query_start=tensor(query_start, torch.int32),
        context_lens=tensor(list(lens), torch.int32),
        block_tables=tensor(list(chain.from_iterable(tables)), torch.int32).view(len(chunks), width),
        slots=tensor(slots, torch.int64),
        query_lens=tuple(chunk.length for chunk in chunks),
        lens=lens,
        block_size=block_size,
    )
    return Batch(
        chunks=tuple(chunks),
        input_ids=tensor(input_ids, torch.int64),
        positions=tensor(positions, torch.int64),
        logit_rows=tensor(logit_rows, torch.int64),
        context=context,
    )
