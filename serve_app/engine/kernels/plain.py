"""The formulas of the native functions, in plain torch. The self-check compares the functions to these.

They are written for readability. They compute in the dtype of their inputs; the self-check uses float64. T
rows are the last T positions of a sequence of length L. There are H heads of queries, and Hkv heads of keys
and values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from serve_app.engine.norm import Norm


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The RMS norm over the last dimension."""
    return Norm(weight, eps)(x)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions to x [T, H, D]; cos and sin [T, D / 2] belong to each row's angles."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def gate(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    """[T, 2N] -> [T, N]: act(gate) * up. `act` is GELU in its tanh form if `gelu`, else SiLU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)) * up


def clamped_gate(gate_up: torch.Tensor, limit: float, alpha: float, added: float) -> torch.Tensor:
    """[2N] -> [N]: gate * sigmoid(alpha * gate) * (up + added); gates <= `limit`, |ups| <= `limit`."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + added)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a router chooses the experts of a row, and their weights; `Router` in experts.h documents it."""

    each: int
    sigmoid: bool
    normalised: bool
    correction: torch.Tensor | None = None  # [E]
    groups: int = 1
    kept: int = 1
    best: int = 1
    scale: float = 1.0


def route(outputs: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs [T, E] of a router -> the numbers of each row's experts [T, K], and their weights."""
    scores = outputs.sigmoid() if routing.sigmoid else outputs.softmax(-1)
    corrected = scores if routing.correction is None else scores + routing.correction
    grouped = corrected.view(len(outputs), routing.groups, -1)
    kept = grouped.topk(routing.best)[0].sum(-1).topk(routing.kept)[1]
    hidden = torch.ones(grouped.shape[:2], dtype=torch.bool).scatter(1, kept, False)
    chosen = grouped.masked_fill(hidden[..., None], float("-inf")).flatten(1).topk(routing.each)[1]
    weights = scores.gather(1, chosen)
    weights = weights / weights.sum(1, keepdim=True) if routing.normalised else weights
    return chosen, weights * routing.scale


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


def recurrence(
    state: torch.Tensor,  # [H, K, V], changed in place
    query: torch.Tensor,  # [T, H, K]
    key: torch.Tensor,  # [T, H, K]
    value: torch.Tensor,  # [T, H, V]
    decay: torch.Tensor,  # [T, H, 1 or K]
    part: torch.Tensor | None,  # [T, H]
) -> torch.Tensor:
    """A matrix for each head over T tokens: [T, H, V]."""
    out = torch.empty_like(value)
    for t in range(len(value)):
        state *= decay[t][..., None]
        delta = value[t]
        if part is not None:
            delta = (delta - torch.einsum("hkv,hk->hv", state, key[t])) * part[t][:, None]
        state += key[t][..., None] * delta[:, None]
        out[t] = torch.einsum("hkv,hk->hv", state, query[t])
    return out


def scan(
    state: torch.Tensor,  # [C, N], changed in place
    x: torch.Tensor,  # [T, C]
    step: torch.Tensor,  # [T, C]
    rates: torch.Tensor,  # [C, N]
    into: torch.Tensor,  # [T, N]
    out_of: torch.Tensor,  # [T, N]
) -> torch.Tensor:
    """The numbers of each channel over T tokens: [T, C]."""
    out = torch.empty_like(x)
    for t in range(len(x)):
        state *= torch.exp(step[t][:, None] * rates)
        state += (step[t] * x[t])[:, None] * into[t]
        out[t] = state @ out_of[t]
    return out


def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, silu: bool) -> torch.Tensor:
    """[W - 1 + T, C] and a weight [C, W] -> [T, C]: sums over the last W inputs of each channel."""
    out = torch.einsum("tcw,cw->tc", x.unfold(0, weight.shape[1], 1), weight)
    out = out if bias is None else out + bias
    return functional.silu(out) if silu else out


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one decoder layer, [outputs, inputs], and its norms."""

    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    q_norm: torch.Tensor  # [D], or [H * D] if `whole`
    k_norm: torch.Tensor
    norm_in: Norm | None
    norm_attended: Norm | None = None
    norm_mid: Norm | None = None
    norm_gated: Norm | None = None
    whole: bool = False
    gated: bool = False  # behind queries, qkv has gates of attention's outputs
    parallel: bool = False
    added: float = 1.0


def layer(
    states: torch.Tensor,
    weights: Weights,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    dim: int,
    eps: float,
) -> torch.Tensor:
    """One decoder layer over a whole sequence [L, N].

    A head has `dim` numbers; `eps` is that of the norms of heads.
    """
    normed = _normed(states, weights.norm_in)
    qkv = normed @ weights.qkv.T
    own = heads * dim
    gates, others = (qkv[:, own : 2 * own], qkv[:, 2 * own :]) if weights.gated else (None, qkv[:, own:])
    query, (key, value) = qkv[:, :own], others.chunk(2, dim=1)
    if weights.whole:
        query, key = rms_norm(query, weights.q_norm, eps), rms_norm(key, weights.k_norm, eps)
    query, key, value = (part.reshape(len(states), -1, dim) for part in (query, key, value))
    if not weights.whole:
        query, key = rms_norm(query, weights.q_norm, eps), rms_norm(key, weights.k_norm, eps)
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    attended = attention(query, key, value, scale=dim**-0.5).flatten(1)
    attended = (attended if gates is None else attended * gates.sigmoid()) @ weights.out.T
    states = states + weights.added * _normed(attended, weights.norm_attended)
    hidden = normed if weights.parallel else _normed(states, weights.norm_mid)
    gated = gate(hidden @ weights.gate_up.T, gelu=False) @ weights.down.T
    return states + weights.added * _normed(gated, weights.norm_gated)


def _normed(x: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    return x if norm is None else norm(x)
