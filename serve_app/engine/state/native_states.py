"""The native functions of a CPU as `StateKernels`, and which kernels compute with which tensors."""

from __future__ import annotations

import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.recurrence import Convolution, Recurrence, Scan
from serve_app.engine.kernels.structs import TYPES
from serve_app.engine.state import StateKernels, States
from serve_app.engine.state.waves import Wave


def kernels_for(states: States, *tensors: torch.Tensor) -> StateKernels | None:
    """The kernels of the device, or else the native functions, if tensors are of a type that these take.

    None: plain torch has to compute the states.
    """
    if states.kernels is not None:
        return states.kernels
    first = tensors[0]
    is_known = first.device.type == "cpu" and first.dtype in TYPES
    found = native() if is_known and all(each.dtype == first.dtype for each in tensors) else None
    return None if found is None else NativeStates(found)


class NativeStates:
    """As `StateKernels`."""

    def __init__(self, functions: Native) -> None:
        self._functions = functions

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
        given = Convolution(x, factors.contiguous(), bias, silu, pool, out)
        self._functions.over_spans(given, wave.native)

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
        q, k, v, d = (each.contiguous() for each in (query, key, value, decay))
        given = Recurrence(q, k, v, d, None if part is None else part.contiguous(), pool, out)
        self._functions.over_spans(given, wave.native)

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
        given = Scan(x, step.contiguous(), rates.contiguous(), into, out_of, pool, out)
        self._functions.over_spans(given, wave.native)
