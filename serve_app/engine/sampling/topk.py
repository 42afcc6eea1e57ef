"""The total order of tokens (likeliest first, lowest id on ties), without sorting a vocabulary.

It is shared by greedy choice, top-k, top-p and the log-probabilities. Every result depends only on its own
row: maxima are exact in any order of evaluation, and ties never depend on an algorithm's choice.
"""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.kernels import native

NEVER: Final = float("-inf")  # the logit of a token that cannot be chosen

_ARGMAX_BLOCK: Final = 128
_TOP_BLOCK: Final = 32


def blocks(x: torch.Tensor, size: int, fill: float) -> torch.Tensor:
    """[R, V] -> [R, ceil(V/size), size]; a view if `size` divides V."""
    rest = -x.shape[1] % size
    if rest:
        x = torch.nn.functional.pad(x, (0, rest), value=fill)
    return x.reshape(x.shape[0], -1, size)


def highest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest value [R] of each row of x [R, V], and the lowest id [R] that has it; NaN for a row with a NaN.

    Without our kernels it searches by blocks, because `max` with indices is several times slower than `amax`.
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
    """The first k tokens of each row of x [R, V]: values and ids, both [R, min(k, V)].

    On a device it never waits for a result; x should be float32 there, since otherwise whole rows are sorted.
    """
    width = x.shape[1]
    if not x.is_cpu and k * 4 < width and x.dtype == torch.float32:
        return largest_by_keys(x, k)
    if k * 4 >= width or not x.is_cpu:  # not worth selecting before sorting
        values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
        return values[:, :k], ids[:, :k]
    values, ids = _any_largest(x, k + 1)
    # If there is no tie at the boundary, the set is unique, and only its order is left to decide.
    tied = ((values[:, k - 1] == values[:, k]) & (values[:, k] > NEVER)).nonzero().flatten().tolist()
    few = (values[:, k - 1] == NEVER).nonzero().flatten().tolist()  # fewer than k tokens can be chosen
    ids, _ = ids[:, :k].sort(dim=-1)
    values, order = torch.sort(x.gather(1, ids), dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    for row in tied:
        reached = (~(x[row] < values[row, -1])).nonzero().flatten()  # NaN too, which sorts before all others
        values[row], order = _first(x[row, reached], k)
        ids[row] = reached[order]
    for row in few:
        possible = (x[row] != NEVER).nonzero().flatten()
        others = (x[row, :k] == NEVER).nonzero().flatten()  # the first of them, as many as are needed
        found = torch.cat((possible, others))[:k]
        values[row], order = _first(x[row, found], k)
        ids[row] = found[order]
    return values, ids


def _first(values: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    ordered, order = torch.sort(values, dim=-1, descending=True, stable=True)
    return ordered[:k], order[:k]


def _any_largest(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`topk` with ties in any order: only the k blocks with the largest maxima need to be searched."""
    split = blocks(x, _TOP_BLOCK, NEVER)
    if k * 4 >= split.shape[1]:
        best = x.topk(k, dim=-1)
        return best.values, best.indices
    chosen = split.amax(-1).topk(k, dim=-1, sorted=False).indices  # [R, k]
    inside = split.gather(1, chosen.unsqueeze(-1).expand(-1, -1, _TOP_BLOCK)).flatten(1)  # [R, k*32]
    best = inside.topk(k, dim=-1)
    block = chosen.gather(1, best.indices // _TOP_BLOCK)
    # Padding can only be met among tokens that cannot be chosen; keep its id inside the row.
    return best.values, (block * _TOP_BLOCK + best.indices % _TOP_BLOCK).clamp_(max=x.shape[1] - 1)


def largest_by_keys(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As `largest`, for float32 x and k below V. Keys have no ties, so no step depends on the values of x.

    The first k blocks, ordered by their maxima and then by their place, contain the first k tokens: each
    block that is ordered before a token's own block has at least one token that comes before that token.
    """
    split = blocks(x, _TOP_BLOCK, NEVER)  # [R, B, 32]
    peaks = split.amax(-1)
    places = torch.arange(peaks.shape[1], device=x.device).expand_as(peaks)
    chosen = _keys(peaks, places).topk(min(k, peaks.shape[1]), dim=-1, sorted=False).indices  # [R, k]
    values = split.gather(1, chosen.unsqueeze(-1).expand(-1, -1, _TOP_BLOCK)).flatten(1)  # [R, k*32]
    ids = (chosen.unsqueeze(-1) * _TOP_BLOCK + torch.arange(_TOP_BLOCK, device=x.device)).flatten(1)
    best = _keys(values, ids).topk(k, dim=-1).indices
    return values.gather(1, best), ids.gather(1, best)


def _keys(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """int64 keys, all different, that order float32 `values`; on ties, the lower of `places` comes first."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0
    # The bits of a negative number grow with its magnitude.
    ordered = torch.where(bits < 0, bits ^ 0x7FFF_FFFF, bits).to(torch.int64)
    return (ordered << 32) + (0xFFFF_FFFF - places)
