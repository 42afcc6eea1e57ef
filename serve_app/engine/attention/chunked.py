"""Attention within chunks of positions, as in layers of Llama 4, on top of any backend.

A token sees no tokens before its chunk, which starts at the last multiple of the chunk's length. Since chunks
begin where blocks begin, each chunk becomes a sequence of its own, whose first block is the chunk's first
block. So backends do not have to handle chunks.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch

from serve_app.engine.forward_context import ForwardContext


def within_chunks(context: ForwardContext, length: int) -> ForwardContext:
    """The same context, but each row sees only its own chunk of `length` tokens.

    Raises ValueError unless `length` is a multiple of the block size.
    """
    if length % context.block_size:
        raise ValueError(f"chunks of {length} tokens are not made of blocks of {context.block_size}")
    if max(context.lens) <= length:
        if context.wanted_start is None:
            return context
        return replace(context, wanted_start=None, wanted_lens=())
    query_lens: list[int] = []
    lens: list[int] = []
    owners: list[int] = []  # the sequence of each piece, and its first block in that sequence's table
    firsts: list[int] = []
    for sequence, (queries, end) in enumerate(zip(context.query_lens, context.lens, strict=True)):
        position = end - queries
        while position < end:
            begin = position // length * length
            stop = min(begin + length, end)
            query_lens.append(stop - position)
            lens.append(stop - begin)
            owners.append(sequence)
            firsts.append(begin // context.block_size)
            position = stop
    tables, device = context.block_tables, context.block_tables.device
    columns = torch.arange(-(-max(lens) // context.block_size), device=device)
    places = torch.tensor(firsts, device=device)[:, None] + columns
    # Beyond a table's end any block will do: `lens` keeps attention from reading it.
    rows = tables[torch.tensor(owners, device=device)[:, None], places.clamp(max=tables.shape[1] - 1)]
    return ForwardContext(
        query_start=torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device),
        context_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        block_tables=rows.contiguous(),
        slots=context.slots,
        query_lens=tuple(query_lens),
        lens=tuple(lens),
        block_size=context.block_size,
    )
