"""Attention in the plainest torch, for any device and every option: the oracle for the other backends.

One sequence at a time, scores in float32, nothing fused. It has no fast path on purpose: another backend is
right if its results equal those of this one.
"""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels.quantized import cached_rows, code_values, stored_as


class _Rows:
    """The keys or the values of one layer: a row [Hkv, D] for each slot."""

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, codes: torch.dtype | None
    ):
        """`shape`: [slots, Hkv, D]. `codes`: of the rows, with a scale for each KV head."""
        self._rows = torch.zeros(shape, dtype=stored_as(codes) if codes else dtype, device=device)
        self._scales = torch.zeros(shape[:2], device=device) if codes else None
        self._codes = codes
        self.pools = [pool for pool in (self._rows, self._scales) if pool is not None]

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        if self._scales is None or self._codes is None:
            self._rows[slots] = rows.to(self._rows.dtype)
            return
        self._rows[slots], self._scales[slots] = cached_rows(rows, self._codes)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """[slots, Hkv, D] in the cache's dtype, or in float32 if the cache is quantised."""
        rows = self._rows[slots]
        return rows if self._scales is None else code_values(rows) * self._scales[slots][..., None]


class ReferenceAttention:
    """A cache of one row for each token in each layer."""

    memory: Final = None  # torch writes zeros to all of it

    def __init__(self) -> None:
        self._block_size = 0
        self._keys: list[_Rows] = []
        self._values: list[_Rows] = []
        self._indices: dict[int, _Rows] = {}

    def allocate(
        self,
        layers: tuple[LayerSpec, ...],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        codes: torch.dtype | None = None,
    ) -> None:
        slots = num_blocks * block_size
        self._block_size = block_size

        def rows(heads: int, dim: int) -> _Rows:
            return _Rows((slots, heads, dim), dtype, device, codes)

        self._keys = [rows(spec.num_kv_heads, spec.key_dim) for spec in layers]
        self._values = [rows(spec.num_kv_heads, 0 if spec.latent else spec.value_dim) for spec in layers]
        self._indices = {i: rows(1, spec.index_dim) for i, spec in enumerate(layers) if spec.index_dim}

    def index(self, layer: int, keys: torch.Tensor, context: ForwardContext, sequence: int) -> torch.Tensor:
        first, count = sum(context.query_lens[:sequence]), context.query_lens[sequence]
        self._indices[layer].write(context.slots[first : first + count], keys[:, None])
        return self._indices[layer].read(_slots(context, sequence))[:, 0]

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
        chosen: torch.Tensor | None = None,
    ) -> torch.Tensor:
        keys, values = self._keys[layer], self._values[layer]
        keys.write(context.slots, key)
        if not latent:
            values.write(context.slots, value)
        outputs, first = [], 0
        for sequence, (count, length) in enumerate(zip(context.query_lens, context.lens, strict=True)):
            rows, slots = slice(first, first + count), _slots(context, sequence)
            first += count
            seen = keys.read(slots)
            visible = causal_mask(count, length, window, query.device)
            if chosen is not None:
                visible &= _among(chosen[rows], length)
            outputs.append(
                attend(
                    query[rows][None],
                    seen[None],
                    (seen[..., : value.shape[-1]] if latent else values.read(slots))[None],
                    visible[None],
                    scale=scale,
                    softcap=softcap,
                    sinks=sinks,
                )[0]
            )
        return torch.cat(outputs)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for pool in (
            pool for rows in (*self._keys, *self._values, *self._indices.values()) for pool in rows.pools
        ):
            blocks = pool.view(len(pool) // self._block_size, self._block_size, *pool.shape[1:])
            for source, target in pairs:
                blocks[target] = blocks[source]


def _slots(context: ForwardContext, sequence: int) -> torch.Tensor:
    """The slots [L] of all tokens of a sequence, in order."""
    table = context.block_tables[sequence]
    offsets = torch.arange(context.block_size, device=table.device)
    return (table[:, None] * context.block_size + offsets).flatten()[: context.lens[sequence]]


def _among(chosen: torch.Tensor, length: int) -> torch.Tensor:
    """[n, length] bool: the positions chosen [n, K] of each row; those below 0 are none."""
    among = torch.zeros(chosen.shape[0], length + 1, dtype=torch.bool, device=chosen.device)
    places = torch.where(chosen < 0, length, chosen).long()
    return among.scatter_(1, places, torch.ones_like(places, dtype=torch.bool))[:, :length]


def causal_mask(num_queries: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[num_queries, length] bool, True if a query sees a key; the queries are at the last key positions."""
    query_positions = torch.arange(length - num_queries, length, device=device)[:, None]
    key_positions = torch.arange(length, device=device)
    visible = key_positions <= query_positions
    if window is not None:
        visible &= key_positions > query_positions - window
    return visible


def attend(
    query: torch.Tensor,  # [S, N, H, D]
    keys: torch.Tensor,  # [S, L, Hkv, D]
    values: torch.Tensor,  # [S, L, Hkv, Dv]
    visible: torch.Tensor,  # [S, N, L] bool, every row with at least one True
    *,
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,  # [H]
) -> torch.Tensor:
    """Softmax attention with grouped heads, in float32; returns [S, N, H, Dv] in the type of `query`."""
    (s, n, _, dim), kv_heads = query.shape, keys.shape[2]
    grouped = query.reshape(s, n, kv_heads, -1, dim).float()  # [S, N, Hkv, G, D]
    scores = torch.einsum("snkgd,slkd->skgnl", grouped, keys.float()) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    if sinks is not None:  # one more column, which takes its share of the softmax and adds no value
        column = sinks.float().view(1, kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    out = torch.einsum("skgnl,slkd->snkgd", weights, values.float())
    return out.flatten(2, 3).to(query.dtype)
