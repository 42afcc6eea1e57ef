"""Log-probabilities under the raw distribution of the model, for the rows that want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import torch

from serve_app.engine.sampling.topk import NEVER, largest
from serve_app.types import PositionLogprobs, TopLogprob

# Rows of a prompt: their float64 copies take less than half of what the logits of 2,048 tokens take.
ROWS_AT_ONCE: Final = 256


class RawLogprobs:
    """The raw distributions of some rows, taken before anything changes their logits.

    They are in float64, in which different float32 logits keep different log-probabilities, so that the first
    alternative is always the greedy token.
    """

    def __init__(self, logits: torch.Tensor, num_top: Sequence[int]) -> None:
        """`logits` [k, V] are finite or -inf; row r wants its `num_top[r]` (0 .. 20) likeliest tokens.

        If a row has other values, its entries are meaningless.
        """
        self._all = torch.log_softmax(logits, dim=-1, dtype=torch.float64)
        self._num_top = num_top
        self._top: tuple[torch.Tensor, ...] = ()  # log-probabilities and ids, both [k, widest]
        widest = min(max(num_top), logits.shape[1])
        if widest > 0 and logits.is_cpu:
            self._top = largest(self._all, widest)
        elif widest > 0:  # different logits keep their order, and a device orders float32 in fewer passes
            ids = largest(logits, widest)[1]
            self._top = self._all.gather(1, ids), ids

    def of(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """The device tensors from which the host makes the entries of `tokens` [k] int64."""
        return [self._all.gather(1, tokens.unsqueeze(1)).squeeze(1), *self._top]

    def at(self, token_ids: Sequence[int]) -> list[PositionLogprobs]:
        """One entry for each row, about the token chosen there; waits for the device."""
        chosen = torch.tensor(token_ids, dtype=torch.int64, device=self._all.device)
        return entries(self._num_top, token_ids, [part.cpu() for part in self.of(chosen)])

    def ranks(self, token_ids: Sequence[int]) -> list[int]:
        """The rank of one token in each row, counted from 1 in the order of `topk`; waits for the device."""
        tokens = torch.tensor(token_ids, dtype=torch.int64, device=self._all.device).unsqueeze(1)
        own = self._all.gather(1, tokens)
        ids = torch.arange(self._all.shape[1], device=self._all.device)
        before = (self._all > own) | ((self._all == own) & (ids < tokens))
        return [1 + count for count in before.sum(dim=1).tolist()]

    def entry(self, row: int, token_id: int) -> PositionLogprobs:
        """The entry of one row for one token; several tokens of a row may be asked for."""
        top = _alternatives(self._num_top[row], row, self._top_on_host)
        return PositionLogprobs(token_id, float(self._all[row, token_id]), top)

    @cached_property
    def _top_on_host(self) -> list[list[list[Any]]]:
        return [top.tolist() for top in self._top]


def entries(
    num_top: Sequence[int], token_ids: Sequence[int], told: Sequence[torch.Tensor]
) -> list[PositionLogprobs]:
    """One entry for each row; `told` is what `RawLogprobs.of` returned for these tokens, on the CPU.

    Alternatives with probability zero are left out.
    """
    values, tops = told[0].tolist(), [top.tolist() for top in told[1:]]
    return [
        PositionLogprobs(token_id, value, _alternatives(wanted, row, tops))
        for row, (wanted, token_id, value) in enumerate(zip(num_top, token_ids, values, strict=True))
    ]


def _alternatives(wanted: int, row: int, tops: list[list[list[Any]]]) -> tuple[TopLogprob, ...]:
    if not tops:
        return ()
    pairs = zip(*(top[row][:wanted] for top in tops), strict=True)
    return tuple(TopLogprob(token_id, value) for value, token_id in pairs if value > NEVER)


def prompt_logprobs(logits: torch.Tensor, next_ids: list[int], num_top: int) -> list[PositionLogprobs]:
    """Log-probabilities and ranks of `next_ids` [k] under logits [k, V]: row r predicts `next_ids[r]`.

    `num_top` is the number of likeliest alternatives per position, 0 .. 20. A row that is not finite gives
    NaN; its sequence fails when the row is sampled.
    """
    found: list[PositionLogprobs] = []
    for start in range(0, len(next_ids), ROWS_AT_ONCE):
        following = next_ids[start : start + ROWS_AT_ONCE]
        rows = logits[start : start + len(following)]
        raw = RawLogprobs(rows, [num_top] * len(following))
        found += [
            replace(entry, rank=rank)
            for entry, rank in zip(raw.at(following), raw.ranks(following), strict=True)
        ]
    return found
