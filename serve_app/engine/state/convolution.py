"""A causal convolution over the last tokens, each channel alone: native on a CPU, else in plain torch.

Its state: the inputs of those tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.activations import ACT2FN

from serve_app.engine.exact import exact
from serve_app.engine.state import States, StateSpec
from serve_app.engine.state.native_states import kernels_for


def causal_conv1d(
    states: States,
    hidden_states: torch.Tensor,  # [1, C, T]
    weight: torch.Tensor,  # [C, K]
    bias: torch.Tensor | None = None,  # [C]
    activation: str | None = None,
    **_: Any,
) -> torch.Tensor:
    """Returns [1, C, T]; sums in float32, the oldest token first."""
    x = hidden_states[0].T.contiguous()
    channels, width = weight.shape
    pool = states.next(StateSpec((width - 1, channels), x.dtype))
    out = torch.zeros_like(x)
    kernels = kernels_for(states, x, weight) if activation in (None, "silu", "swish") else None
    if kernels is not None:
        for wave in states.waves:
            kernels.convolve(x, weight, bias, pool, out, wave, silu=activation is not None)
        return out.T[None]
    factors = weight.float().T.contiguous()
    act = None if activation is None else exact(ACT2FN[activation]) or ACT2FN[activation]
    for wave in states.waves:
        rows, windows, ends = wave.windows(width)
        known = torch.cat([pool.index_select(0, wave.sources).flatten(0, 1), x])
        total = known[windows[:, 0]].float() * factors[0]
        for k in range(1, width):  # no fused product and sum: torch would use one in some places alone
            total += known[windows[:, k]].float() * factors[k]
        if bias is not None:
            total += bias.float()
        if act is not None:
            total = act(total)
        out.index_copy_(0, rows, total.to(x.dtype))
        pool.index_copy_(0, wave.targets, known[ends])
    return out.T[None]
