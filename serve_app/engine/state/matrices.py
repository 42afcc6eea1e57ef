"""One matrix per head that maps keys to values: native on a CPU, by kernels on a GPU, or in plain torch.

For each token, the matrix decays, a product with the token's key is added, and the value for the token's
query is read.
"""

from __future__ import annotations

import torch

from serve_app.engine.state import States
from serve_app.engine.state.native_states import kernels_for
from serve_app.engine.state.scan import scan


def run_matrices(
    states: States,
    pool: torch.Tensor,  # [slots, H, K, V]
    query: torch.Tensor,  # [T, G, K]: a head of queries and keys serves H / G heads of values
    key: torch.Tensor,  # [T, G, K]
    value: torch.Tensor,  # [T, H, V]
    decay: torch.Tensor,  # [T, H, 1] or [T, H, K]
    part: torch.Tensor | None = None,  # [T, H]: how much of the matrix's own value of the key is replaced
) -> torch.Tensor:
    """Returns [T, H, V]; all float32."""
    kernels, out = kernels_for(states, value), value.new_zeros(value.shape)
    if kernels is not None:
        for wave in states.waves:
            kernels.recur(query, key, value, decay, part, pool, out, wave)
        return out
    times = value.shape[1] // key.shape[1]
    inputs = [query.repeat_interleave(times, 1), key.repeat_interleave(times, 1), value, decay]
    return scan(states.waves, pool, out, _advance, *inputs, *([] if part is None else [part]))


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
