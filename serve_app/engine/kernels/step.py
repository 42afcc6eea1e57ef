"""A step through all decoder layers, as a typed native call."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels.checks import check, check_context, wanted
from serve_app.engine.kernels.layers import Layers
from serve_app.engine.kernels.spans import Spans
from serve_app.engine.kernels.structs import POINTER, StepStruct, WaveStruct

Factors = tuple[torch.Tensor, torch.Tensor]  # of rotary positions: cos and sin, each [T, D / 2] float32


def run_layers(
    library: ctypes.CDLL,
    layers: Layers,
    states: torch.Tensor,
    factors: Sequence[Factors],
    context: ForwardContext,
    waves: Sequence[Spans],
    *,
    narrow: bool,
) -> None:
    """As `Native.run_layers`. Raises ValueError for arguments that do not fit each other."""
    for tensor in (states, *itertools.chain(*factors)):
        check(tensor, torch.float32)
    check(context.slots, torch.int64)
    check_context(context, len(states), layers.caches[0])
    half = layers.caches[0].struct.key_dim // 2
    if (
        states.shape[1] != layers.structs[0].qkv.inputs
        or any(part.shape != (len(states), half) for part in itertools.chain(*factors))
        or len(factors) < layers.kinds_of_factors
        or len(context.slots) != len(states)
    ):
        raise ValueError("the states do not fit the layers, the rotary factors or the slots")
    _check_waves(layers, waves, len(states))
    passes = (WaveStruct * len(waves))(
        *(WaveStruct(spans=each.table.data_ptr(), count=each.table.shape[1]) for each in waves)
    )
    pointers = POINTER * len(factors)
    cos, sin = (pointers(*(each[i].data_ptr() for each in factors)) for i in (0, 1))
    step = StepStruct(
        states=states.data_ptr(),
        cos=ctypes.addressof(cos),
        sin=ctypes.addressof(sin),
        slots=context.slots.data_ptr(),
        start=context.query_start.data_ptr(),
        wanted=wanted(context).data_ptr() if narrow else None,
        length=context.context_lens.data_ptr(),
        tables=context.block_tables.data_ptr(),
        waves=ctypes.addressof(passes),
        rows=len(states),
        sequences=context.num_sequences,
        table_width=context.block_tables.shape[1],
        wave_count=len(waves),
    )
    library.run_layers(
        *(layers.structs, layers.pointers, len(layers.structs), ctypes.addressof(step)),
        torch.get_num_threads(),
    )


def _check_waves(layers: Layers, waves: Sequence[Spans], tokens: int) -> None:
    """Raise ValueError unless layers with states find each of `tokens` rows in a span, and its slots."""
    if not layers.rules:
        return
    for wave in waves:
        check(wave.table, torch.int64)
    if sum(wave.tokens for wave in waves) != tokens or any(wave.rows > tokens for wave in waves):
        raise ValueError("the spans are not those of the rows")
    if any(wave.slots > layers.slots for wave in waves):
        raise ValueError("a slot lies outside of the pools")
