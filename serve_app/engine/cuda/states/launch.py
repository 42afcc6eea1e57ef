"""Calls the kernels of functions with a state, as `StateKernels`."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.attention.triton.early import early_start
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.attention.triton.tiles import power_of_two
from serve_app.engine.cuda.states import kernels
from serve_app.engine.state.waves import Wave

TOKENS: Final = 16  # rows of a convolution's program
CHANNELS: Final = 256  # of a convolution's program
COLUMNS: Final = 32  # of a matrix
SCANNED: Final = 64  # channels of a scan's program

_CONVOLVE, _RECUR, _SCAN = map(Launcher, (kernels.convolve, kernels.recur, kernels.scan_channels))


class TritonStates:
    """As `StateKernels`."""

    def convolve(
        self,
        x: torch.Tensor,
        factors: torch.Tensor,
        bias: torch.Tensor | None,
        pool: torch.Tensor,
        out: torch.Tensor,
        wave: Wave,
        *,
        silu: bool,
    ) -> None:
        past, channels = pool.shape[1:]
        at_once = min(CHANNELS, power_of_two(channels))
        owners = wave.owners(len(x))
        rows = min(len(x), len(owners))  # rows after those of the batch are in no span
        _CONVOLVE(
            (-(-rows // TOKENS), -(-channels // at_once)),
            *(x, factors.contiguous(), x if bias is None else bias, pool, out),
            *(wave.table, owners, wave.table.stride(0), rows),
            CHANNELS=channels,
            PAST=past,
            BIAS=bias is not None,
            SILU=silu,
            TOKENS=TOKENS,
            AT_ONCE=at_once,
            **early_start(x.device),
        )

    def recur(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        part: torch.Tensor | None,
        pool: torch.Tensor,
        out: torch.Tensor,
        wave: Wave,
    ) -> None:
        heads, rows, columns = pool.shape[1:]
        given = [each.contiguous() for each in (query, key, value, decay, value if part is None else part)]
        at_once = min(COLUMNS, power_of_two(columns))
        _RECUR(
            (len(wave.spans), heads, -(-columns // at_once)),
            *(*given, pool, out, wave.table, wave.table.stride(0)),
            HEADS=heads,
            SHARE=heads // key.shape[1],
            K=rows,
            V=columns,
            K_PAD=power_of_two(rows),
            DECAYS=decay.shape[2],
            PARTS=part is not None,
            AT_ONCE=at_once,
            **early_start(value.device),
        )

    def scan(
        self,
        x: torch.Tensor,
        step: torch.Tensor,
        rates: torch.Tensor,
        into: torch.Tensor,
        out_of: torch.Tensor,
        pool: torch.Tensor,
        out: torch.Tensor,
        wave: Wave,
    ) -> None:
        channels, numbers = pool.shape[1:]
        given = [each.contiguous() for each in (x, step, rates, into, out_of)]
        at_once = min(SCANNED, power_of_two(channels))
        _SCAN(
            (len(wave.spans), -(-channels // at_once)),
            *(*given, pool, out, wave.table, wave.table.stride(0)),
            CHANNELS=channels,
            N=numbers,
            N_PAD=power_of_two(numbers),
            AT_ONCE=at_once,
            **early_start(x.device),
        )
