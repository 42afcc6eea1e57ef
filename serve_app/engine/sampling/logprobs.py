"""Log-probabilities of the raw model distribution, for the rows that ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from serve_app.engine.sampling.topk import NEVER, largest
from serve_app.types import PositionLogprobs, TopLogprob

# Rows of a prompt: their float64 copies take less than half of what the logits of 2,048 tokens take.
ROWS_AT_ONCE: Final = 256


class RawLogprobs:
    """The distributions of some rows, taken before anything changes their logits.

    In float64, where two different float32 logits keep different log-probabilities:
    the first alternative is then always the greedy token.
    """

    def __init__(self, logits: torch.Tensor, num_top: Sequence[int]) -> None:
        """`logits` [k, V] are finite or -inf; row r wants its `num_top[r]` (0 .. 20) likeliest tokens."""
        self._all = torch.log_softmax(logits, dim=-1, dtype=torch.float64)
        self._num_top = num_top
        widest = min(max(num_top), logits.shape[1])
        self._top: tuple[list[list[float]], list[list[int]]] | None = None
        if widest > 0:
            values, ids = largest(self._all, widest)
            self._top = values.tolist(), ids.tolist()

    def at(self, token_ids: Sequence[int]) -> list[PositionLogprobs]:
        """One entry for each row, for the token chosen there.

        Alternatives of probability zero are left out.
        """
        chosen = torch.tensor(token_ids, dtype=torch.int64, device=self._all.device).unsqueeze(1)
        values: list[float] = self._all.gather(1, chosen).squeeze(1).tolist()
        return [
            PositionLogprobs(token_id, value, self._alternatives(row))
            for row, (token_id, value) in enumerate(zip(token_ids, values, strict=True))
        ]

    def entry(self, row: int, token_id: int) -> PositionLogprobs:
        """The entry of one row for one token; a row may be asked for several tokens."""
        return PositionLogprobs(token_id, float(self._all[row, token_id]), self._alternatives(row))

    def _alternatives(self, row: int) -> tuple[TopLogprob, ...]:
        if self._top is None:
            return ()
        wanted = self._num_top[row]
        pairs = zip(self._top[1][row][:wanted], self._top[0][row][:wanted], strict=True)
        return tuple(TopLogprob(token_id, value) for token_id, value in pairs if value > NEVER)


def prompt_logprobs(logits: torch.Tensor, next_ids: list[int], num_top: int) -> list[PositionLogprobs]:
    """Log-probabilities of `next_ids` [k] under logits [k, V], row r predicting `next_ids[r]`.

    `num_top` is 0 .. 20 likeliest alternatives a position. A row that is not finite
    gives NaN; its sequence fails when it samples.
    """
    found: list[PositionLogprobs] = []
    for start in range(0, len(next_ids), ROWS_AT_ONCE):
        following = next_ids[start : start + ROWS_AT_ONCE]
        rows = logits[start : start + len(following)]
        found += RawLogprobs(rows, [num_top] * len(following)).at(following)
    return found
