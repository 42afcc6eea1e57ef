"""The sampler's results for one row of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from serve_app.engine.sampling.logprobs import RawLogprobs
from serve_app.types import ErrorInfo, PositionLogprobs


class Sampled(NamedTuple):
    """The token chosen from one row; if there is an `error`, the id is -1 and the sequence must end."""

    token_id: int
    logprobs: PositionLogprobs | None = None
    error: ErrorInfo | None = None


@dataclass(slots=True, frozen=True)
class Scored:
    """The scores of one beam's row, from which a search chooses; meaningless if there is an `error`."""

    log_probs: torch.Tensor  # [V] float32, edited
    error: ErrorInfo | None = None
    raw: RawLogprobs | None = None  # the unedited distributions of several rows, where the client asked
    row: int = 0  # of this beam in `raw`
    logits: bytes | None = None  # of the row before any edit, when the request wants them

    def logprob_of(self, token_id: int) -> PositionLogprobs | None:
        """The log-probability of a token in the unedited distribution; None unless the request wants it."""
        return None if self.raw is None else self.raw.entry(self.row, token_id)
