"""The formulas of the native functions, in plain torch. The self-check compares the functions with them.

The formulas are written to be read. They compute in the type of their inputs, which is float64 in the
self-check. T rows are the last T positions of a sequence of length L. There are H heads of queries, and Hkv
heads of keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The RMS norm over the last dimension."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] with rotary positions: cos and sin [T, D / 2] of the angles of each row."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def gate(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    """[T, 2N] -> [T, N]: act(gate) * up. act is the tanh form of GELU if `gelu`, else SiLU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)) * up


def attention(
    query: torch.Tensor,  # [T, H, D]
    key: torch.Tensor,  # [L, Hkv, D]
    value: torch.Tensor,  # [L, Hkv, Dv]
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,  # [H]
) -> torch.Tensor:
    """Causal attention: [T, H, Dv]."""
    group = query.shape[1] // key.shape[1]
    scores = torch.einsum("thd,lhd->htl", query, key.repeat_interleave(group, 1)) * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    positions = torch.arange(len(key))
    distance = positions[-len(query) :, None] - positions
    hidden = (distance < 0) | (distance >= (window or len(key)))
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores).view(-1, 1, 1).expand(-1, len(query), 1)], -1)
    weights = scores.softmax(-1)[:, :, : len(key)]
    return torch.einsum("htl,lhd->thd", weights, value.repeat_interleave(group, 1))


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one decoder layer: [outputs, inputs], or [features] of a norm."""

    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    norm_in: torch.Tensor
    norm_mid: torch.Tensor
    q_norm: torch.Tensor
    k_norm: torch.Tensor


def layer(
    states: torch.Tensor, weights: Weights, cos: torch.Tensor, sin: torch.Tensor, heads: int, eps: float
) -> torch.Tensor:
    """One pre-norm decoder layer over a whole sequence [L, N]."""
    dim = len(weights.q_norm)
    qkv = (rms_norm(states, weights.norm_in, eps) @ weights.qkv.T).view(len(states), -1, dim)
    kv_heads = (qkv.shape[1] - heads) // 2
    query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    query = rotate(rms_norm(query, weights.q_norm, eps), cos, sin)
    key = rotate(rms_norm(key, weights.k_norm, eps), cos, sin)
    states = states + attention(query, key, value, scale=dim**-0.5).flatten(1) @ weights.out.T
    hidden = rms_norm(states, weights.norm_mid, eps)
    return states + gate(hidden @ weights.gate_up.T, gelu=False) @ weights.down.T
