"""Sampling filters and the draw, for rows that share one tensor but are independent of each other.

Candidates are in float64, likeliest first and lowest id on ties, and padded with impossible tokens to a
multiple of 64. So a row's numbers do not depend on how wide the other rows have to be. Sums that a choice
depends on run over one row in a fixed order (`cumsum`, or blocks of 128). Draws overwrite their logits. Does
not depend on sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple

import torch

from serve_app.engine.sampling.topk import NEVER, blocks, largest

_SUM_BLOCK: Final = 128
_WIDTH_STEP: Final = 64
_NUCLEUS_WIDTHS: Final = (256, 4096)  # most nuclei are small; a full sort is the last resort


class RowParams(NamedTuple):
    """The sampling parameters of a single row."""

    temperature: float
    top_k: int  # the width of the row, or more: off
    top_p: float
    min_p: float
    typical_p: float
    noise: float  # in [0, 1)


@dataclass(slots=True, frozen=True)
class FilterParams:
    """The parameters of a group of R rows, each [R, 1] float64, and what the host knows of all rows."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    typical_p: torch.Tensor
    noise: torch.Tensor
    _: KW_ONLY
    widest: int  # the largest `top_k`
    narrowest: int
    by_min_p: bool  # whether any row has one
    by_typical_p: bool

    @classmethod
    def of(cls, rows: Sequence[RowParams], table: torch.Tensor) -> FilterParams:
        """`table` [R, 6] float64 has the parameters of the `rows`, on the same device as their logits."""
        return cls(
            *table.unsqueeze(-1).unbind(1),
            widest=max(row.top_k for row in rows),
            narrowest=min(row.top_k for row in rows),
            by_min_p=any(row.min_p > 0 for row in rows),
            by_typical_p=any(row.typical_p < 1 for row in rows),
        )

    def select(self, rows: torch.Tensor) -> FilterParams:
        """The parameters of only some of the rows."""
        return FilterParams(
            *(
                column[rows]
                for column in (
                    *(self.temperature, self.top_k, self.top_p),
                    *(self.min_p, self.typical_p, self.noise),
                )
            ),
            widest=self.widest,
            narrowest=self.narrowest,
            by_min_p=self.by_min_p,
            by_typical_p=self.by_typical_p,
        )


def scale_(x: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """x = (x - the row's maximum) / temperature, [R, V], in place. The results are at most 0, so no
    temperature can produce a NaN."""
    limits = torch.finfo(x.dtype)
    return x.sub_(x.amax(-1, keepdim=True)).div_(temperature.to(x.dtype).clamp(limits.tiny, limits.max))


def draw_all(x: torch.Tensor, params: FilterParams) -> torch.Tensor:
    """Sample ids [R] from logits x [R, V], after filtering by min-p only."""
    probs = torch.softmax(scale_(x, params.temperature), dim=-1)
    if params.by_min_p:
        bound = params.min_p.to(probs.dtype) * probs.amax(-1, keepdim=True)
        probs = probs.masked_fill_(probs < bound, 0.0)
    split = blocks(probs, _SUM_BLOCK, 0.0)
    mass = split.sum(-1).cumsum(-1, dtype=torch.float64)  # [R, V/128]
    target = params.noise * mass[:, -1:]
    block = (mass <= target).sum(-1).clamp_(max=mass.shape[1] - 1)
    rows = torch.arange(x.shape[0], device=x.device)
    before = mass[rows, block - 1].masked_fill(block == 0, 0.0).unsqueeze(1)
    inside = split[rows, block].cumsum(-1, dtype=torch.float64)  # [R, 128]
    position = (inside <= target - before).sum(-1)
    # The two levels round differently: never step past the block's last possible token.
    last = (inside < inside[:, -1:]).sum(-1)
    return block * _SUM_BLOCK + torch.minimum(position, last)


def draw_top_k(x: torch.Tensor, params: FilterParams) -> torch.Tensor:
    """Sample ids [R] after filtering each row by top-k, then by the other filters."""
    values, ids = largest(x, min(params.widest, x.shape[1]))
    values = _widen(_cut(values.double(), params), NEVER)
    probs = torch.softmax(scale_(values, params.temperature), dim=-1)
    return _finish(probs, ids, probs.cumsum(-1)[:, -1:], params)


def draw_top_p(x: torch.Tensor, params: FilterParams) -> torch.Tensor:
    """Sample ids [R] after filtering each row by top-p, then by min-p and typical-p.

    On a CPU, it looks at more and more of the likeliest tokens until these contain the nucleus, so that it
    need not sort the vocabulary. The draw does not depend on how many tokens it looked at. On a device it
    sorts, since a check for the nucleus would have to wait for the device.
    """
    x = scale_(x, params.temperature)
    probs = torch.softmax(x, dim=-1)
    if not x.is_cpu:
        ids = largest(x, x.shape[1])[1]
        total = torch.ones(x.shape[0], 1, dtype=torch.float64, device=x.device)
        return _finish(_widen(probs.gather(1, ids).double(), 0.0), ids, total, params)
    chosen = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
    left = torch.arange(x.shape[0], device=x.device)
    for width in (*(w for w in _NUCLEUS_WIDTHS if w < x.shape[1]), x.shape[1]):
        _, ids = largest(x[left], width)
        head = _widen(probs[left].gather(1, ids).double(), 0.0)
        settled = head.cumsum(-1)[:, -1] >= params.top_p[left, 0]
        if width == x.shape[1]:
            settled.fill_(True)
        rows = left[settled]
        if rows.numel():
            total = torch.ones(rows.numel(), 1, dtype=torch.float64, device=x.device)
            chosen[rows] = _finish(head[settled], ids[settled], total, params.select(rows))
        left = left[~settled]
        if not left.numel():
            break
    return chosen


def distribution(x: torch.Tensor, params: FilterParams) -> torch.Tensor:
    """[R, V] float64: the distributions that the functions above draw from, for logits x [R, V]."""
    values, ids = largest(x, x.shape[1])
    values = _widen(_cut(values.double(), params), NEVER)
    probs = torch.softmax(scale_(values, params.temperature), dim=-1)
    probs = _filter(probs, probs.cumsum(-1)[:, -1:], params)[:, : ids.shape[1]]
    return torch.zeros_like(probs).scatter_(1, ids, probs / probs.cumsum(-1)[:, -1:])


def _cut(values: torch.Tensor, params: FilterParams) -> torch.Tensor:
    """Rule out, in place, all but the `top_k` likeliest of `values` [R, k], which are sorted."""
    if params.narrowest >= values.shape[1]:
        return values
    return values.masked_fill_(torch.arange(values.shape[1], device=values.device) >= params.top_k, NEVER)


def _widen(x: torch.Tensor, fill: float) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[1] % _WIDTH_STEP), value=fill)


def _finish(
    probs: torch.Tensor, ids: torch.Tensor, total: torch.Tensor, params: FilterParams
) -> torch.Tensor:
    """Filter candidates by top-p, min-p and typical-p, then draw ids [R].

    `probs` [R, W] are sorted, likeliest first, and may be only the head of the distribution; `total` [R, 1]
    is the mass of the whole distribution.
    """
    mass = _filter(probs, total, params).cumsum(-1)
    position = (mass <= params.noise * mass[:, -1:]).sum(-1, keepdim=True)
    return ids.gather(1, position.clamp_(max=ids.shape[1] - 1)).squeeze(1)


def _filter(probs: torch.Tensor, total: torch.Tensor, params: FilterParams) -> torch.Tensor:
    """The candidates as `_finish` leaves them, with zeros in place of those filtered out."""
    probs = _keep_nucleus(probs, total, params.top_p)
    probs = probs.masked_fill(probs < params.min_p * probs[:, :1], 0.0)
    return _keep_typical(probs, params.typical_p) if params.by_typical_p else probs


def _keep_nucleus(probs: torch.Tensor, total: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero everything after the shortest head that has at least `top_p` of the total."""
    drop = (probs.cumsum(-1) - probs >= top_p * total) & (top_p < 1)
    drop[:, 0] = False
    return probs.masked_fill(drop, 0.0)


def _keep_typical(probs: torch.Tensor, typical_p: torch.Tensor) -> torch.Tensor:
    """Keep the tokens whose surprisal is nearest the entropy, up to `typical_p` of the mass, and zero all
    others."""
    probs_1 = probs / probs.cumsum(-1)[:, -1:]
    entropy = torch.special.entr(probs_1).cumsum(-1)[:, -1:]
    _, order = torch.sort((-probs_1.log() - entropy).abs(), dim=-1, stable=True)
    in_order = probs_1.gather(1, order)
    drop = (in_order.cumsum(-1) - in_order >= typical_p) & (typical_p < 1)
    drop[:, 0] = False
    return probs.masked_fill(torch.zeros_like(drop).scatter_(1, order, drop), 0.0)
