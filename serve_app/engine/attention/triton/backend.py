"""An `AttentionBackend` that calls the kernels. Of a device, or of a CPU in Triton's interpreter."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.attention.block_pools import BlockPools
from serve_app.engine.attention.triton import kernels
from serve_app.engine.attention.triton.plan import PART, Plan, plan
from serve_app.engine.forward_context import ForwardContext

ROWS: Final = 64  # of a tile: rows of the batch times query heads of a group
KEYS: Final = 64  # read at once, of heads of up to 128 numbers
KEYS_OF_WIDE_HEADS: Final = 32
LEAST: Final = 16  # rows, keys and numbers of a tile product on a device
WRITTEN: Final = 1024  # numbers that are copied to the cache at once


class TritonAttention(BlockPools):
    """Keys and values in blocks of [block_size, Hkv, D]."""

    def __init__(self) -> None:
        super().__init__()
        self._context: ForwardContext | None = None
        self._plans: dict[int, Plan] = {}  # rows of a tile -> the present step's plan

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
    ) -> torch.Tensor:
        keys, values = self._keys[layer], self._values[layer]
        self._write(key, value, keys, values, context)
        heads, kv_heads = query.shape[1], keys.shape[2]
        group_pad = _power_of_two(heads // kv_heads)
        rows = max(ROWS, group_pad)
        step = self._plan(context, rows // group_pad)
        query = query.contiguous()
        out = query.new_empty(*query.shape[:2], values.shape[3])
        tables = context.block_tables.contiguous()
        key_pad, value_pad = (max(LEAST, _power_of_two(pool.shape[3])) for pool in (keys, values))
        keys_at_once = KEYS if max(key_pad, value_pad) <= 128 else KEYS_OF_WIDE_HEADS
        shape = {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "BLOCK_SIZE": keys.shape[1],
            "KEY_DIM": keys.shape[3],
            "VALUE_DIM": values.shape[3],
            "KEY_PAD": key_pad,
            "VALUE_PAD": value_pad,
            "N": keys_at_once,
            "WINDOW": window is not None,
            "SOFTCAP": softcap is not None,
        }
        options = (scale, softcap or 0.0, window or 0)
        sink_logits = query if sinks is None else sinks.contiguous()  # a pointer that nobody reads, if None
        if tiles := step.tiles.shape[0]:
            kernels.prompts[(tiles, kv_heads)](
                *(query, keys, values, out, tables, tables.shape[1]),
                *(context.query_start, context.context_lens, step.tiles, sink_logits, *options),
                GROUP_PAD=group_pad,
                M=rows,
                SINKS=sinks is not None,
                **shape,
            )
        if decodes := step.decodes.shape[0]:
            size = (decodes, heads, step.parts)
            tops, totals = (query.new_empty(size, dtype=torch.float32) for _ in range(2))
            partial = query.new_empty((*size, values.shape[3]), dtype=torch.float32)
            kernels.decode_parts[(decodes, kv_heads, step.parts)](
                *(query, keys, values, tops, totals, partial, step.decodes, tables, tables.shape[1]),
                *(context.context_lens, step.parts, *options),
                PART=PART,
                M=max(LEAST, group_pad),
                **shape,
            )
            kernels.decode_join[(decodes, heads)](
                *(tops, totals, partial, out, step.decodes, context.context_lens, step.parts, sink_logits),
                window or 0,
                HEADS=heads,
                VALUE_DIM=values.shape[3],
                VALUE_PAD=value_pad,
                PART=PART,
                WINDOW=window is not None,
                SINKS=sinks is not None,
            )
        return out

    def _write(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        context: ForwardContext,
    ) -> None:
        sizes = keys.shape[2] * keys.shape[3], values.shape[2] * values.shape[3]
        kernels.write_rows[(key.shape[0],)](
            *(key.contiguous(), value.contiguous(), keys, values, context.slots),
            KEY_SIZE=sizes[0],
            VALUE_SIZE=sizes[1],
            STEP=min(WRITTEN, _power_of_two(max(sizes))),
        )

    def _plan(self, context: ForwardContext, rows_a_tile: int) -> Plan:
        if context is not self._context:
            self._plans, self._context = {}, context
        if rows_a_tile not in self._plans:
            self._plans[rows_a_tile] = plan(context, rows_a_tile)
        return self._plans[rows_a_tile]


def _power_of_two(number: int) -> int:
    """The least one that is not below `number`."""
    return 1 << (number - 1).bit_length()
