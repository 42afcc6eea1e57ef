"""State-space models: Mamba-2 (a decay for each head) and Mamba (a decay for each channel and state)."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from serve_app.engine.exact import silu, softplus
from serve_app.engine.state import States, StateSpec
from serve_app.engine.state.matrices import run_matrices
from serve_app.engine.state.native_states import kernels_for
from serve_app.engine.state.scan import scan


def mamba2_scan(
    states: States,
    hidden_states: torch.Tensor,  # [1, T, H, P]
    dt: torch.Tensor,  # [1, T, H]
    A: torch.Tensor,  # [H]
    B: torch.Tensor,  # [1, T, G, N]: a group serves H / G heads
    C: torch.Tensor,  # [1, T, G, N]
    chunk_size: int = 0,
    D: torch.Tensor | None = None,  # [H]
    dt_bias: torch.Tensor | None = None,  # [H]
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, inf),
    **_: Any,
) -> torch.Tensor:
    """Returns [1, T, H, P] in float32. `chunk_size` changes nothing: tokens are taken one by one."""
    x, into, out_of = (each[0].float() for each in (hidden_states, B, C))
    heads = x.shape[1]
    step = _time_step(dt[0], dt_bias, dt_softplus).clamp(*dt_limit).float()
    decay = torch.exp(step * A.float())[..., None]
    pool = states.next(StateSpec((heads, into.shape[2], x.shape[2]), torch.float32))
    out = run_matrices(states, pool, out_of, into, x * step[..., None], decay)
    if D is not None:
        out += x * D.float()[:, None]
    return out[None]


def mamba_scan(
    states: States,
    hidden_states: torch.Tensor,  # [1, C, T]
    dt: torch.Tensor,  # [1, C, T]
    A: torch.Tensor,  # [C, N]
    B: torch.Tensor,  # [1, N, T]
    C: torch.Tensor,  # [1, N, T]
    *,
    D: torch.Tensor | None = None,  # [C]
    z: torch.Tensor | None = None,  # [1, C, T]
    delta_bias: torch.Tensor | None = None,  # [C]
    delta_softplus: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Returns [1, C, T]."""
    x, into, out_of = (each[0].T.float().contiguous() for each in (hidden_states, B, C))
    step = _time_step(dt[0].T, delta_bias, delta_softplus).float()
    rates = A.float()

    def advance(
        state: torch.Tensor, x: torch.Tensor, step: torch.Tensor, into: torch.Tensor, out_of: torch.Tensor
    ) -> torch.Tensor:
        state *= torch.exp(step[..., None] * rates)
        state += (step * x)[..., None] * into[:, None]
        return (state * out_of[:, None]).sum(-1)

    pool, out = states.next(StateSpec((x.shape[1], into.shape[1]), torch.float32)), torch.zeros_like(x)
    kernels = kernels_for(states, x)
    if kernels is not None:
        for wave in states.waves:
            kernels.scan(x, step, rates, into, out_of, pool, out, wave)
    else:
        scan(states.waves, pool, out, advance, x, step, into, out_of)
    if D is not None:
        out += x * D.float()
    if z is not None:
        out *= silu(z[0].T.float())
    return out.to(hidden_states.dtype).T[None]


def _time_step(dt: torch.Tensor, bias: torch.Tensor | None, positive: bool) -> torch.Tensor:
    """[T, ...]: how far each token moves the state."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    return softplus(dt.float()).to(dt.dtype) if positive else dt
