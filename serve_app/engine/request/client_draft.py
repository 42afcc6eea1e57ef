"""The first output tokens that a client proposes for its own request. Does not depend on sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from serve_app.engine.request.tensors import to_torch
from serve_app.types import Draft


@dataclass(frozen=True, slots=True)
class ClientDraft:
    """A draft, whose tokens are verified for as long as the output equals the draft."""

    token_ids: tuple[int, ...]
    probs: torch.Tensor | None = None  # [k, V] float64: the distributions that the tokens were drawn from
    threshold: float | None = None  # 0 .. 1, in the place of the random number of each acceptance test

    @classmethod
    def of(cls, draft: Draft) -> ClientDraft:
        """The draft of a checked request."""
        probs = None if draft.logits is None else torch.softmax(to_torch(draft.logits).double(), dim=-1)
        return cls(draft.token_ids, probs, draft.acceptance_threshold)
