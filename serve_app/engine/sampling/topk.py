"""The total order of tokens, likeliest first and lowest id on ties, without sorting a vocabulary.

Shared by greedy choice, top-k, top-p and the log-probabilities. Every result is
a function of its own row alone: maxima are exact in any order of evaluation, and
ties never depend on an algorithm's choice.
"""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.kernels import native

NEVER: Final = float("-inf")  # the logit of a token that cannot be chosen

_ARGMAX_BLOCK: Final = 128
_TOP_BLOCK: Final = 32


def blocks(x: torch.Tensor, size: int, fill: float) -> torch.Tensor:
    """[R, V] -> [R, ceil(V/size), size], a view when `size` divides V."""
    rest = -x.shape[1] % size
    if rest:
        x = torch.nn.functional.pad(x, (0, rest), value=fill)
    return x.reshape(x.shape[0], -1, size)


def highest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value [R] of each row of x [R, V] and the lowest id [R] that has it; NaN if the row has one.

    Elsewhere than in our kernels by blocks, because `max` with indices is several times slower than `amax`.
    """
    kernels = native() if x.is_cpu and x.dtype == torch.float32 and x.is_contiguous() else None
    if kernels is not None:
        return kernels.highest(x)
    split = blocks(x, _ARGMAX_BLOCK, NEVER)
    peaks = split.amax(-1)  # [R, V/128]
    block = peaks.argmax(-1)  # the first of equals
    rows = torch.arange(x.shape[0], device=x.device)
    inside = split[rows, block]  # [R, 128]
    return peaks[rows, block], block * _ARGMAX_BLOCK + inside.argmax(-1)


def largest(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first k tokens of each row of x [R, V]: values and ids, both [R, min(k, V)]."""
    width = x.shape[1]
    if k * 4 >= width:  # not worth selecting before sorting
        values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[:, :k], ids[:, :k]
    values, ids = _any_largest(x, k + 1)
    # With the boundary not tied the set is unique, and only its order is left to decide.
    tied = ((values[:, k - 1] == values[:, k]) & (values[:, k] > NEVER)).nonzero().flatten().tolist()
    ids, _ = ids[:, :k].sort(dim=-1)
    values, order = torch.sort(x.gather(1, ids), dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    for row in tied:
        reached = (x[row] >= values[row, -1]).nonzero().flatten()
        values[row], order = _first(x[row, reached], k)
        ids[row] = reached[order]
    return values, ids


def _first(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    ordered, order = torch.sort(values, dim=-1, descending=True, stable=True)
    return ordered[:k], order[:k]


def _any_largest(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`topk` with ties in any order: only the k blocks with the largest maxima can hold the k largest."""
    split = blocks(x, _TOP_BLOCK, NEVER)
    if k * 4 >= split.shape[1]:
        best = x.topk(k, dim=-1)
        return best.values, best.indices
    chosen = split.amax(-1).topk(k, dim=-1, sorted=False).indices  # [R, k]
    inside = split.gather(1, chosen.unsqueeze(-1).expand(-1, -1, _TOP_BLOCK)).flatten(1)  # [R, k*32]
    best = inside.topk(k, dim=-1)
    block = chosen.gather(1, best.indices // _TOP_BLOCK)
    # Padding can only be met among tokens of probability zero; keep its id inside the row.
    return best.values, (block * _TOP_BLOCK + best.indices % _TOP_BLOCK).clamp_(max=x.shape[1] - 1)
