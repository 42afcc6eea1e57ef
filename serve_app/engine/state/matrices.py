"""One matrix per head that maps keys to values: native on a CPU, by kernels on a GPU, or in plain torch.

For each token, the matrix decays, a product with the token's key is added, and the value for the token's
query is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from serve_app.engine.kernels import native
from serve_app.engine.kernels.recurrence import Recurrence
from serve_app.engine.state import StateKernels
from serve_app.engine.state.scan import scan
from serve_app.engine.state.waves import Wave


def run_matrices(
    waves: Sequence[Wave],
    pool: torch.Tensor,  # [slots, H, K, V]
    query: torch.Tensor,  # [T, G, K]: a head of queries and keys serves H / G heads of values
    key: torch.Tensor,  # [T, G, K]
    value: torch.Tensor,  # [T, H, V]
    decay: torch.Tensor,  # [T, H, 1] or [T, H, K]
    part: torch.Tensor | None = None,  # [T, H]: how much of the matrix's own value of the key is replaced
    kernels_of_device: StateKernels | None = None,
) -> torch.Tensor:
    """Returns [T, H, V]; all float32."""
    if kernels_of_device is not None:
        out = torch.zeros_like(value)
        for wave in waves:
            kernels_of_device.recur(query, key, value, decay, part, pool, out, wave)
        return out
    kernels = native() if value.device.type == "cpu" else None
    if kernels is not None:
        q, k, v, kept = (each.contiguous() for each in (query, key, value, decay))
        out = torch.zeros(value.shape)
        step = Recurrence(q, k, v, kept, None if part is None else part.contiguous(), pool, out)
        for wave in waves:
            kernels.over_spans(step, wave.native)
        return out
    times = value.shape[1] // key.shape[1]
    inputs = [query.repeat_interleave(times, 1), key.repeat_interleave(times, 1), value, decay]
    return scan(waves, pool, torch.zeros_like(value), _advance, *inputs, *([] if part is None else [part]))


def _advance(
    state: torch.Tensor,  # [n, H, K, V]
    query: torch.Tensor,  # [n, H, K]
    key: torch.Tensor,
    value: torch.Tensor,  # [n, H, V]
    decay: torch.Tensor,  # [n, H, 1 or K]
    part: torch.Tensor | None = None,  # [n, H]
) -> torch.Tensor:
    state *= decay[..., None]
    delta = value if part is None else (value - (state * key[..., None]).sum(-2)) * part[..., None]
    state += key[..., None] * delta[..., None, :]
    return (state * query[..., None]).sum(-2)
