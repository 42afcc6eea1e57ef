"""MiniMax's Lightning attention: the matrix of a head decays by the same factor at every token."""

from __future__ import annotations

from typing import Any

import torch

from serve_app.engine.exact import sigmoid
from serve_app.engine.state import States, StateSpec
from serve_app.engine.state.matrices import run_matrices


def lightning_attention(
    states: States,
    module: Any,  # transformers' MiniMaxLightningAttention
    hidden_states: torch.Tensor,  # [1, T, hidden]
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Does the work of the module's forward; returns ([1, T, hidden], None)."""
    heads, width = module.num_attention_heads, module.head_dim
    mixed = module.act_fn(module.qkv_proj(hidden_states))[0].float()
    query, key, value = mixed.view(-1, heads, 3 * width).split(width, -1)
    decay = torch.exp(-module.slope_rate.float()).view(1, heads, 1).expand(len(mixed), -1, -1)
    pool = states.next(StateSpec((heads, width, width), torch.float32))
    out = run_matrices(states, pool, query, key, value, decay)
    out = module.norm(out.view(1, len(mixed), -1).to(hidden_states.dtype))
    gate = sigmoid(module.output_gate(hidden_states).float()).to(out.dtype)
    return module.out_proj(gate * out), None
