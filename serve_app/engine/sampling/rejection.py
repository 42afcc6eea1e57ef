"""Rejection sampling against a client's draft, whose tokens come with their distributions.

The rule of Leviathan et al. 2023, algorithm 1. A draw depends only on its position, not on how many positions
a step computes. Works on sequences and distributions, without logits or batches.
"""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.sampling.noise import uniform
from serve_app.engine.sequence import Sequence

_ACCEPTANCE: Final = 0xA5A5_5A5A_C3C3_3C3C  # xor'ed into the seed: noise of its own for the acceptance test


def draws_by_rejection(sequence: Sequence) -> bool:
    """Whether the next token of a sampling sequence is drawn by `draw_by_rejection`."""
    draft = sequence.client_draft
    return draft is not None and draft.probs is not None and bool(sequence.drafted_ids)


def draw_by_rejection(probs: torch.Tensor, sequence: Sequence) -> int:
    """The next token of `sequence`; `probs` [V] float64 is the model's final distribution p.

    The drafted token is accepted with probability min(1, p / q), where q is the draft's distribution. If it
    is rejected, a token is drawn from the part of p above q. Overall, this is the same as a draw from p.
    """
    draft, position = sequence.client_draft, sequence.num_output
    if draft is None or draft.probs is None:
        raise ValueError("the sequence has no draft with probabilities")
    token, q = draft.token_ids[position], draft.probs[position].to(probs.device)
    bound = draft.threshold
    if bound is None:
        bound = uniform(sequence.seed ^ _ACCEPTANCE, sequence.index, position)
    if float(probs[token]) > 0.0 and bound * float(q[token]) <= float(probs[token]):
        return token
    rest = (probs - q).clamp_(min=0.0)
    if not bool(rest.any()):  # p is q up to rounding
        rest = probs
    mass = rest.cumsum(-1)
    place = int((mass <= uniform(sequence.seed, sequence.index, position) * mass[-1]).sum())
    return min(place, int(rest.nonzero()[-1]))
