"""Calls the kernels of fused layers, after checking shapes and allocating memory."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.attention.block_pools import Pools
from serve_app.engine.attention.triton.codes import ROUNDED
from serve_app.engine.attention.triton.early import early_start
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.cuda import kernels
from serve_app.engine.norm import Norm, Pending

GATED_AT_ONCE: Final = 1024  # numbers of a program
HEADS_AT_ONCE: Final = 8
WARP: Final = 32  # threads, each of which takes some numbers of a row
NUMBERS_A_THREAD: Final = 8

_ADD_NORM, _NORMALISE_PART, _GATED, _ROPE_AND_CACHE = map(
    Launcher, (kernels.add_norm, kernels.normalise_part, kernels.gated, kernels.rope_and_cache)
)


class TritonKernels:
    """The kernels for weights of one type. Tensors are contiguous, and of that type unless a comment says
    otherwise."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def add_norm(
        self,
        residual: torch.Tensor,  # [T, N] float32
        pending: Pending | None,
        norm: Norm | None,
    ) -> torch.Tensor:
        """Add what is `pending` to the residual, in place. Returns norm(residual); without a norm, a copy."""
        rows, size = residual.shape
        after, delta = (None, residual) if pending is None else (pending.norm, pending.delta)
        if delta.shape != residual.shape:
            raise ValueError("residual and delta differ in shape")
        norms = [each for each in (after, norm) if each is not None]
        if any(each.weight.shape != (size,) or each.centred != norms[0].centred for each in norms):
            raise ValueError("the norms do not fit the residual or one another")
        out = torch.empty(rows, size, dtype=self._dtype, device=residual.device)
        if rows:
            pad = _power_of_two(size)
            weights = [residual if each is None else each.weight for each in (after, norm)]
            epsilons = [0.0 if each is None else each.eps for each in (after, norm)]
            _ADD_NORM(
                (rows,),
                *(residual, delta, *weights, out, *epsilons, 1.0 if pending is None else pending.scale),
                SIZE=size,
                PAD=pad,
                DELTA=pending is not None,
                AFTER=after is not None,
                BEFORE=norm is not None,
                CENTRED=any(each.centred for each in norms),
                num_warps=_warps(pad),
                **early_start(residual.device),
            )
        return out

    def normalise_part(self, x: torch.Tensor, first: int, weight: torch.Tensor, eps: float) -> None:
        """Replace N numbers of each row of x [T, W], from `first` on, by their RMSNorm; weight [N]."""
        rows, width = x.shape
        if first + len(weight) > width:
            raise ValueError("the norm is wider than the rows")
        if rows:
            pad = _power_of_two(len(weight))
            _NORMALISE_PART(
                (rows,),
                *(x, weight, eps),
                WIDTH=width,
                FIRST=first,
                SIZE=len(weight),
                PAD=pad,
                num_warps=_warps(pad),
                **early_start(x.device),
            )

    def gated(self, gate_up: torch.Tensor, gelu: bool = False) -> torch.Tensor:
        """[T, 2 I] -> [T, I]: SiLU, or GELU by tanh, of the first half, times the second half."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        step = min(GATED_AT_ONCE, _power_of_two(size))
        if rows:
            _GATED(
                (rows, -(-size // step)),
                *(gate_up, out),
                SIZE=size,
                STEP=step,
                GELU=gelu,
                num_warps=_warps(step),
                **early_start(gate_up.device),
            )
        return out

    def rope_and_cache(
        self,
        qkv: torch.Tensor,  # [T, (H + 2 Hkv) * D]
        cos: torch.Tensor,  # [T, D / 2] float32
        sin: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,  # of query and key heads, [D] float32
        eps: float,
        pools: tuple[Pools, Pools],  # keys and values, of any type
        slots: torch.Tensor,  # [T] int64; below 0: nothing is written
    ) -> torch.Tensor:
        """Normalise (if `norms`) and rotate queries and keys; write keys and values to the pools.

        Returns the queries [T, H, D].
        """
        keys, values = (each.rows for each in pools)
        scales = [cos if each.scales is None else each.scales for each in pools]  # cos: not read
        rows, kv_heads, size = qkv.shape[0], keys.shape[2], keys.shape[3]
        heads = qkv.shape[1] // size - 2 * kv_heads
        if values.shape != keys.shape or cos.shape != (rows, size // 2):
            raise ValueError("queries, keys and values differ in the size of a head")
        query = qkv.new_empty(rows, heads, size)
        query_norm, key_norm = norms or (cos, cos)  # pointers that are not read
        if rows:
            _ROPE_AND_CACHE(
                (rows, -(-(heads + 2 * kv_heads) // HEADS_AT_ONCE)),
                *(qkv, cos, sin, query_norm, key_norm, eps, query, keys, values, *scales, slots),
                HEADS=heads,
                KV_HEADS=kv_heads,
                HALF=size // 2,
                HALF_PAD=_power_of_two(size // 2),
                AT_ONCE=HEADS_AT_ONCE,
                NORMS=norms is not None,
                CODES=pools[0].scales is not None,
                **ROUNDED,
                **early_start(qkv.device),
            )
        return query


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def _warps(numbers: int) -> int:
    return min(16, max(1, numbers // (WARP * NUMBERS_A_THREAD)))
