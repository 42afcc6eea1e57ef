"""Attention without a cache over packed sequences: each sees itself alone, no row is padding.

One function, registered with transformers under a name, as the paged one is. The sequences
of a forward lie one after another; `packed` says where each ends. No mask function is
registered under the name, so transformers builds none, and direction and window come with
the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from serve_app.engine.attention.reference import attend
from serve_app.engine.model.forward import HARMLESS, UnsupportedModel

ATTENTION_NAME: Final = "serve_app_packed"

_lengths: ContextVar[tuple[int, ...]] = ContextVar("packed_lengths")


@contextmanager
def packed(lengths: Sequence[int]) -> Iterator[None]:
    """Forwards inside hold sequences of these lengths, one after another.

    Neighbours of one length are computed together.
    """
    token = _lengths.set(tuple(lengths))
    try:
        yield
    finally:
        _lengths.reset(token)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, H, T, D]
    key: torch.Tensor,  # [1, Hkv, T, D]
    value: torch.Tensor,  # [1, Hkv, T, Dv]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each sequence; returns ([1, T, H, Dv], None) as transformers expects.

    `sliding_window`: a query sees less than this many tokens to either side (of the left, if
    causal), itself included. UnsupportedModel if the module asks for anything else.
    """
    name = type(module).__name__
    if attention_mask is not None:
        raise UnsupportedModel(f"{name} builds its own attention mask")
    unknown = [k for k in others.keys() - HARMLESS if not isinstance(others[k], bool | None)]
    if unknown:
        raise UnsupportedModel(f"{name} needs {', '.join(sorted(unknown))}, which is not supported")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs, start = [], 0
    for length, group in groupby(_lengths.get()):
        count = sum(1 for _ in group)
        rows = slice(start, start + count * length)
        start = rows.stop
        # [1, H, N L, D] -> [N, H, L, D]
        q, k, v = (
            part[0, :, rows].reshape(part.shape[1], count, length, -1).transpose(0, 1)
            for part in (query, key, value)
        )
        mask = None if sliding_window is None else _window_mask(length, sliding_window, causal, q.device)
        if softcap or s_aux is not None:
            out = _attend_plainly(q, k, v, mask, causal, scale, softcap or None, s_aux)
        else:
            out = scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=causal and mask is None,
                scale=scale,
                enable_gqa=q.shape[1] != k.shape[1],
            ).transpose(1, 2)
        outputs.append(out.flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0), None


def _window_mask(length: int, window: int, causal: bool, device: torch.device) -> torch.Tensor:
    """[L, L] bool, True where visible."""
    positions = torch.arange(length, device=device)
    back = positions[:, None] - positions
    return (back < window) & (back >= 0 if causal else back > -window)


def _attend_plainly(
    query: torch.Tensor,  # [N, H, L, D]
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """For options that the fused function lacks; returns [N, L, H, Dv]."""
    count, _, length, _ = query.shape
    if mask is None:
        mask = _window_mask(length, length, causal, query.device)
    q, k, v = (part.transpose(1, 2) for part in (query, key, value))
    visible = mask.expand(count, length, length)
    return attend(q, k, v, visible, scale=scale, softcap=softcap, sinks=sinks)


AttentionInterface.register(ATTENTION_NAME, packed_attention)
