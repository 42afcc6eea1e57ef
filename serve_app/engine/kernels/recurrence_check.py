"""The self-check of the native recurrence, which compares its results with those of the formula."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from serve_app.engine.kernels import plain
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.recurrence import Recurrence

HEADS, GROUPS, KEYS, VALUES = 4, 2, 6, 39
SPANS = ((0, 5, 0, 2), (5, 1, 1, 3))  # first rows, lengths, slots before and slots after


def recurrence_results(
    native: Native, random: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of computed and expected results, with decays by head and by key, with and without correction."""
    for decays, corrected in ((1, True), (KEYS, True), (1, False)):
        query, key = (torch.randn(6, GROUPS, KEYS, generator=random) for _ in range(2))
        value, pool = torch.randn(6, HEADS, VALUES, generator=random), torch.zeros(4, HEADS, KEYS, VALUES)
        pool[:2] = torch.randn(2, HEADS, KEYS, VALUES, generator=random)
        decay = torch.rand(6, HEADS, decays, generator=random)
        part = torch.rand(6, HEADS, generator=random) if corrected else None
        want, out = pool.double(), torch.empty_like(value)
        native.recur(
            Recurrence(query, key, value, decay, part, pool, out), torch.tensor(SPANS).T.contiguous()
        )
        for first, length, source, target in SPANS:
            rows = slice(first, first + length)
            q, k = (each[rows].double().repeat_interleave(HEADS // GROUPS, 1) for each in (query, key))
            p = None if part is None else part[rows].double()
            want[target] = want[source]
            yield (
                out[rows],
                plain.recurrence(want[target], q, k, value[rows].double(), decay[rows].double(), p),
            )
        yield pool, want
