"""The bridge from transformers' indexers to our cache: attention only to the tokens that an index chooses.

An indexer (DeepSeek's DSA) has a short key of each token, scores a sequence's keys for each row, and chooses
the best tokens. Attention of its layer, and of layers that share its choice, sees these alone. It computes on
a whole cache, so it runs once for each sequence of a step. Its keys are in the blocks, beside the layer's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, cast

import torch
from torch import nn
from torch.nn import functional

from serve_app.engine.attention import IndexedBackend
from serve_app.engine.attention.reference import causal_mask
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.model.forward import NoMask, current

_OURS: Final = "serve_app_indexer"  # marks an indexer that is connected already
NO_TOKEN: Final = -1


class _Cached:
    """Takes the place of transformers' cache while an indexer runs for one sequence of a step."""

    def __init__(self, backend: IndexedBackend, context: ForwardContext, sequence: int) -> None:
        self._backend, self._context, self._sequence = backend, context, sequence

    def update_indexer(self, keys: torch.Tensor, layer: int) -> torch.Tensor:
        """Keys [1, N, D] of the sequence's new tokens -> keys [1, L, D] of all its tokens."""
        return self._backend.index(layer, keys[0], self._context, self._sequence)[None]


def connect_indexers(module: nn.Module) -> None:
    """Let the indexers of `module` choose among the tokens of their own sequences in the active step."""
    for part in module.modules():
        indexer = getattr(part, "indexer", None)
        if isinstance(indexer, nn.Module) and not hasattr(indexer, _OURS):
            indexer.forward = _by_sequence(indexer.forward)
            part.register_forward_pre_hook(_without_mask, with_kwargs=True)
            setattr(indexer, _OURS, True)


def has_indexers(module: nn.Module) -> bool:
    """Whether a layer of `module` attends to the tokens that an index chooses."""
    return any(isinstance(getattr(part, "indexer", None), nn.Module) for part in module.modules())


def _without_mask(module: nn.Module, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Transformers makes no mask for our attention, but its code takes a part of one for the indexer."""
    if options.get("attention_mask") is None:
        options = {**options, "attention_mask": NoMask()}
    return args, options


def _by_sequence(own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    signature = inspect.signature(own)

    @wraps(own)
    def choose(*args: Any, **options: Any) -> torch.Tensor:
        """The tokens that each row of the batch sees, by their positions: [1, T, K], or NO_TOKEN."""
        given = signature.bind(*args, **options).arguments
        if not isinstance(given["attention_mask"], NoMask):
            return own(*args, **options)
        step, device = current(), given["hidden_states"].device
        context, rows = step.context, given["hidden_states"].shape[1]
        chosen, first = [], 0
        for sequence, (count, length) in enumerate(zip(context.query_lens, context.lens, strict=True)):
            part = {name: _cut(value, rows, slice(first, first + count)) for name, value in given.items()}
            part["attention_mask"] = causal_mask(count, length, None, device)[None]
            part["past_key_values"] = _Cached(cast(IndexedBackend, step.backend), context, sequence)
            chosen.append(own(**part))
            first += count
        width = max(each.shape[-1] for each in chosen)
        padded = [functional.pad(each, (0, width - each.shape[-1]), value=NO_TOKEN) for each in chosen]
        return torch.cat(padded, dim=1)

    return choose


def _cut(value: Any, rows: int, part: slice) -> Any:
    """The part of a tensor [1, T, ...] with `rows` rows, of a tuple of such tensors, or any other value."""
    if isinstance(value, tuple):
        return tuple(_cut(each, rows, part) for each in value)
    if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == rows:
        return value[:, part]
    return value
