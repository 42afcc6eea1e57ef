"""Paged attention in device-agnostic torch, made for a GPU: Python does no work per token.

The cache is [blocks, block_size, Hkv, D] per layer; codes are converted to numbers when they are gathered.
All sequences that compute one token share one padded gather and one call; each longer
chunk is a call of its own. The division of a step into calls is the same in every layer, so it is computed
once a step. Softcap and sinks, which the fused kernels lack, are computed with plain matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from serve_app.engine.attention.block_pools import BlockPools, Pools
from serve_app.engine.attention.reference import attend
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.transfer import send


@dataclass(frozen=True, slots=True)
class _Group:
    """S sequences with N query rows each, padded to the same number of blocks."""

    rows: torch.Tensor  # [S*N] int64: their rows in the batch
    num_queries: int  # N
    tables: torch.Tensor  # [S, blocks] int64
    lens: torch.Tensor  # [S, 1, 1] int64: tokens visible to the last row


class TorchGpuAttention(BlockPools):
    """Keys and values in blocks of [block_size, Hkv, D]; runs on any device, for tests on a CPU too."""

    def __init__(self) -> None:
        super().__init__()
        # cuDNN makes a plan of tens of milliseconds for every new shape, and keeps it. Steps have any shape.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self._context: ForwardContext | None = None
        self._groups: tuple[_Group, ...] = ()

    def forward(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        context: ForwardContext,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        latent: bool = False,
    ) -> torch.Tensor:
        keys, values = self._keys[layer], self._values[layer]
        keys.write(context.slots, key)
        if not latent:
            values.write(context.slots, value)
        if context is not self._context:
            self._groups, self._context = _divide(context), context
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        for group in self._groups:
            rows = query[group.rows].view(-1, group.num_queries, *query.shape[1:])
            seen = _gather(keys, group)
            cached = seen, seen[..., : value.shape[-1]] if latent else _gather(values, group)
            visible = _visible(group, seen.shape[1], window)
            if softcap is None and sinks is None:
                result = _fused(rows, *cached, visible, scale)
            else:
                result = attend(rows, *cached, visible, scale=scale, softcap=softcap, sinks=sinks)
            out[group.rows] = result.flatten(0, 1)
        return out


def _divide(context: ForwardContext) -> tuple[_Group, ...]:
    """First a group of all sequences with a single token, then a group for each longer chunk."""
    device = context.slots.device
    starts = [0]
    for length in context.query_lens:
        starts.append(starts[-1] + length)
    single = [s for s, length in enumerate(context.query_lens) if length == 1]
    longer = [[s] for s, length in enumerate(context.query_lens) if length > 1]
    groups = []
    for members in ([single] if single else []) + longer:
        num_queries = context.query_lens[members[0]]
        at, first, lens = send(
            device,
            *(
                np.array(values, dtype=np.int64)
                for values in (members, [starts[s] for s in members], [context.lens[s] for s in members])
            ),
        )
        blocks = -(-max(context.lens[s] for s in members) // context.block_size)
        groups.append(
            _Group(
                rows=(first[:, None] + torch.arange(num_queries, device=device)).flatten(),
                num_queries=num_queries,
                tables=context.block_tables.index_select(0, at)[:, :blocks].long(),
                lens=lens[:, None, None],
            )
        )
    return tuple(groups)


def _gather(pools: Pools, group: _Group) -> torch.Tensor:
    """[S, L, Hkv, D]: the cache of each sequence, followed by zeros.

    After a sequence's end, its last block still has what the block's last owner wrote. A mask alone would not
    keep those old rows out: a weight of zero times a NaN is a NaN, and one broken request would break
    another.
    """
    cached = pools.read(group.tables)
    beyond = torch.arange(cached.shape[1], device=cached.device) >= group.lens[:, 0]
    return cached.masked_fill_(beyond[..., None, None], 0)


def _visible(group: _Group, length: int, window: int | None) -> torch.Tensor:
    """[S, N, length] bool: which tokens of its sequence's padded cache each query row sees."""
    device = group.lens.device
    # The rows are the last N positions of their sequence.
    position = group.lens - group.num_queries + torch.arange(group.num_queries, device=device)[:, None]
    distance = position - torch.arange(length, device=device)
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def _fused(
    query: torch.Tensor,  # [S, N, H, D]
    keys: torch.Tensor,  # [S, L, Hkv, D]
    values: torch.Tensor,  # [S, L, Hkv, Dv]
    visible: torch.Tensor,  # [S, N, L]
    scale: float,
) -> torch.Tensor:
    """[S, N, H, Dv] by one fused call."""
    heads, kv_heads = query.shape[2], keys.shape[2]
    query, keys, values = (t.to(query.dtype).transpose(1, 2) for t in (query, keys, values))
    mask = visible[:, None]
    if query.shape[2] == 1:  # one row a head: the heads of a group become the rows, nothing is repeated
        query = query.view(query.shape[0], kv_heads, heads // kv_heads, -1)
    elif heads != kv_heads:  # kernels with a mask want as many key heads as query heads
        keys, values = (t.repeat_interleave(heads // kv_heads, dim=1) for t in (keys, values))
    out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    if visible.shape[1] == 1:
        return out.reshape(out.shape[0], 1, heads, -1)
    return out.transpose(1, 2)
