"""An `AttentionBackend` that calls the kernels. It runs on a GPU, or on a CPU in Triton's interpreter."""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from triton.runtime import driver

from serve_app.engine.attention.block_pools import BlockPools
from serve_app.engine.attention.triton import kernels, writing
from serve_app.engine.attention.triton.codes import ROUNDED
from serve_app.engine.attention.triton.early import early_start
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.attention.triton.plan import (
    PART,
    Decodes,
    decodes_of,
    lasting_decodes,
    lasting_tiles,
    tiles_of,
)
from serve_app.engine.attention.triton.tiles import (
    LARGE_SHARED,
    groups_of,
    pads,
    power_of_two,
    tile_of_decodes,
    tile_of_prompts,
)
from serve_app.engine.forward_context import ForwardContext

WRITTEN: Final = 1024  # numbers copied to the cache by one program
PROGRAMS: Final = 8192  # programs of a decode; each takes one part after the other
JOINED: Final = 16  # parts at once

_PROMPTS, _DECODE_PARTS, _DECODE_JOIN = map(
    Launcher, (kernels.prompts, kernels.decode_parts, kernels.decode_join)
)


class TritonAttention(BlockPools):
    """Keys and values in blocks of [block_size, Hkv, D], as numbers or as codes."""

    def __init__(self) -> None:
        super().__init__()
        # The current step, and its division into programs.
        self._context: ForwardContext | None = None
        self._decodes: Decodes | None = None
        self._tiles: dict[int, torch.Tensor | None] = {}  # by rows of a tile
        self._lasting_prompts = 0  # that a recorded step may have

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
        self._write(layer, key, value, context)
        return self.attend(layer, query, context, scale=scale, window=window, softcap=softcap, sinks=sinks)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        context: ForwardContext,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `forward`, but the step's keys and values are already in the cache."""
        key_pools, value_pools = self.pools(layer)
        keys, values = key_pools.rows, value_pools.rows
        scales = key_pools.scales, value_pools.scales
        # Pointers that are not read if there are none.
        cached = keys, values, *(query if pool is None else pool for pool in scales)
        heads, kv_heads, latent = query.shape[1], keys.shape[2], self.is_latent(layer)
        key_pad, value_pad, rest_pad = pads(keys.shape[3], values.shape[3], latent=latent)
        width, codes = max(key_pad, value_pad), scales[0] is not None
        groups = groups_of(heads, kv_heads, width)
        group = power_of_two(heads // groups)
        shared = _shared_memory(query.device)
        of_prompts = tile_of_prompts(group, width, query.element_size(), codes=codes, shared=shared)
        rows_a_tile = of_prompts.rows // group
        self._divide(context, rows_a_tile)
        query = query.contiguous()
        out = query.new_empty(*query.shape[:2], values.shape[3])
        tables = context.block_tables
        shape = {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "GROUPS": groups,
            "BLOCK_SIZE": keys.shape[1],
            "KEY_DIM": keys.shape[3],
            "VALUE_DIM": values.shape[3],
            "KEY_PAD": key_pad,
            "VALUE_PAD": value_pad,
            "REST_PAD": rest_pad,
            "LATENT": latent,
            "WINDOW": window is not None,
            "SOFTCAP": softcap is not None,
            "CODES": codes,
        }
        early = early_start(query.device)
        options = (scale * kernels.LOG2_E.value, (softcap or 0.0) * kernels.LOG2_E.value, window or 0)
        sink_logits = query if sinks is None else sinks.contiguous()  # a pointer that is not read if None
        if (tiles := self._tiles[rows_a_tile]) is not None:
            _PROMPTS(
                (groups * tiles.shape[0],),
                *(query, *cached, out, tables, tables.stride(0)),
                *(context.query_start, context.context_lens, tiles, sink_logits, *options),
                GROUP_PAD=group,
                M=of_prompts.rows,
                N=of_prompts.keys,
                SINKS=sinks is not None,
                **shape,
                **of_prompts.options,
                **early,
            )
        if (decodes := self._decodes) is not None:
            size = (decodes.most_parts, heads)
            tops, totals = (query.new_empty(size, dtype=torch.float32) for _ in range(2))
            partial = query.new_empty((*size, values.shape[3]), dtype=torch.float32)
            of_decodes = tile_of_decodes(group, width, query.element_size(), codes=codes, shared=shared)
            _DECODE_PARTS(
                (groups * min(decodes.most_parts, max(1, PROGRAMS // groups)),),
                *(query, *cached, tops, totals, partial),
                *(decodes.parts, decodes.count, tables, tables.stride(0), *options),
                PART=PART,
                M=of_decodes.rows,
                N=of_decodes.keys,
                **shape,
                **of_decodes.options,
                **early,
            )
            _DECODE_JOIN(
                (len(decodes.each), heads),
                *(tops, totals, partial, out, decodes.each, sink_logits, window or 0),
                HEADS=heads,
                VALUE_DIM=values.shape[3],
                VALUE_PAD=value_pad,
                PART=PART,
                AT_ONCE=JOINED,
                WINDOW=window is not None,
                SINKS=sinks is not None,
                **early,
            )
        return out

    def begin_lasting(self, context: ForwardContext, most_parts: int, prompts: int = 0) -> None:
        """Prepare the step `context` so that it can be recorded in a graph and replayed.

        Up to `prompts` of its sequences may have several rows. If `prompts` is 0, all sequences have one row,
        and a sequence of length 0 is empty: nothing is read for it, and its row is zeros. Otherwise a
        sequence without rows is empty, and the results of rows that belong to no sequence are meaningless.
        `most_parts` bounds how many parts (of `plan.PART` tokens) all one-row sequences have together.
        """
        self._context, self._tiles, self._lasting_prompts = context, {}, prompts
        self._decodes = lasting_decodes(context, most_parts, mixed=prompts > 0)

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor, context: ForwardContext) -> None:
        key_pools, value_pools = self.pools(layer)
        keys, values = key_pools.rows, value_pools.rows
        if key_pools.scales is not None:
            writing.write_codes[(key.shape[0],)](
                *(key.contiguous(), value.contiguous(), keys, values, key_pools.scales, value_pools.scales),
                context.slots,
                KV_HEADS=keys.shape[2],
                HEADS_PAD=power_of_two(keys.shape[2]),
                KEY_DIM=keys.shape[3],
                VALUE_DIM=values.shape[3],
                KEY_PAD=power_of_two(keys.shape[3]),
                VALUE_PAD=power_of_two(values.shape[3]),
                **ROUNDED,
            )
            return
        if self.is_latent(layer):  # of which a part are the values
            value, values = key, values[..., :0]
        sizes = keys.shape[2] * keys.shape[3], values.shape[2] * values.shape[3]
        writing.write_rows[(key.shape[0],)](
            *(key.contiguous(), value.contiguous(), keys, values, context.slots),
            KEY_SIZE=sizes[0],
            VALUE_SIZE=sizes[1],
            STEP=min(WRITTEN, power_of_two(max(sizes))),
        )

    def _divide(self, context: ForwardContext, rows_a_tile: int) -> None:
        if context is not self._context:
            self._context, self._decodes, self._tiles = context, decodes_of(context), {}
            self._lasting_prompts = 0
        if rows_a_tile not in self._tiles:
            self._tiles[rows_a_tile] = (
                lasting_tiles(context, rows_a_tile, self._lasting_prompts)
                if self._lasting_prompts
                else tiles_of(context, rows_a_tile)
            )


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use; Triton's interpreter counts as a large device."""
    if device.type != "cuda":
        return LARGE_SHARED
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])
