"""The gated delta rule (a decay for each head), and Kimi's delta attention (a decay for each key channel).

Each token makes the matrix of a head decay, corrects the value at its key, and reads the value at its query.
"""

from __future__ import annotations

from typing import Any

import torch

from serve_app.engine.state import States, StateSpec
from serve_app.engine.state.matrices import run_matrices


def gated_delta_rule(
    states: States,
    query: torch.Tensor,  # [1, T, G, K]: a head of queries and keys serves H / G heads of values
    key: torch.Tensor,  # [1, T, G, K]
    value: torch.Tensor,  # [1, T, H, V]
    g: torch.Tensor,  # [1, T, H] or [1, T, H, K]: the logarithm of the decay
    beta: torch.Tensor,  # [1, T, H]: how much of the value is corrected
    *,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Returns ([1, T, H, V], None): new states are not returned, but kept here."""
    q, k, v, decay, part = (x[0].float() for x in (query, key, value, g, beta))
    heads, width = v.shape[1], k.shape[2]
    if use_qk_l2norm_in_kernel:
        q, k = _normalised(q), _normalised(k)
    q = q / width**0.5
    decay = torch.exp(decay)
    decay = decay[..., None] if decay.dim() == 2 else decay
    pool = states.next(StateSpec((heads, width, v.shape[2]), torch.float32))
    out = run_matrices(states, pool, q, k, v, decay, part)
    return out.to(query.dtype)[None], None


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
