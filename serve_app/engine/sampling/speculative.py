"""Draft tokens: who proposes them, and how one forward verifies several.

A step may compute the rows of a sequence and of a draft after it. `take_tokens` walks
along the draft for as long as it is what the sequence would have said anyway: each
token is drawn by the same sampler, in the same state and with the same noise as
without a draft, so a draft changes when tokens come and not which. Where a client
gave the distribution that its draft was drawn from, `redraw` is the rule of the draw
at these positions, however many of them a step computes: a function of the position
alone. What a draft left in the KV cache beyond the accepted tokens is overwritten.

Knows rows and sequences; no blocks, no scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import torch

from serve_app.engine.request.tensors import to_torch
from serve_app.engine.sampling.noise import uniform
from serve_app.engine.sequence import Sequence as Line
from serve_app.types import Draft

if TYPE_CHECKING:
    from serve_app.engine.sampling.sampler import Sampled

_ACCEPTANCE: Final = 0xA5A5_5A5A_C3C3_3C3C  # xor'ed into the seed: noise of its own for the test


class Proposer(Protocol):
    """Something that guesses how a sequence goes on."""

    def propose(self, line: Line, most: int) -> tuple[int, ...]:
        """At most `most` tokens that may follow, all inside the vocabulary."""
        ...

    def learn(self, proposed: int, accepted: int) -> None:
        """What became of a proposal."""
        ...


@dataclass(frozen=True, slots=True)
class Guess:
    """A client's draft of the first output tokens. It holds until the output leaves it."""

    token_ids: tuple[int, ...]
    probs: torch.Tensor | None = None  # [k, V] float64: what each was drawn from
    threshold: float | None = None

    @classmethod
    def of(cls, draft: Draft) -> Guess:
        """The guess of a checked draft."""
        probs = None if draft.logits is None else torch.softmax(to_torch(draft.logits).double(), dim=-1)
        return cls(draft.token_ids, probs, draft.acceptance_threshold)

    def holds(self, line: Line) -> bool:
        """Whether it has a word on the next token of `line`."""
        told = line.num_output
        return told < len(self.token_ids) and tuple(line.output_ids) == self.token_ids[:told]

    def propose(self, line: Line, most: int) -> tuple[int, ...]:
        """What is left of it; nothing once the output has left it."""
        start = line.num_output
        return self.token_ids[start : start + most] if self.holds(line) else ()

    def learn(self, proposed: int, accepted: int) -> None:
        """Nothing: it is said once."""


def redraws(line: Line) -> bool:
    """Whether the next token of a sequence that samples is drawn by `redraw`."""
    guess = line.guess
    return guess is not None and guess.probs is not None and guess.holds(line)


def redraw(probs: torch.Tensor, line: Line) -> int:
    """The next token by rejection sampling; `probs` [V] float64 is the final distribution.

    The guessed token is accepted with probability min(1, p / q), else another is drawn
    from what p has more than q (Leviathan et al. 2023, algorithm 1): in all, from p.
    """
    guess, position = line.guess, line.num_output
    if guess is None or guess.probs is None:
        raise ValueError("the sequence has no draft with probabilities")
    token, q = guess.token_ids[position], guess.probs[position].to(probs.device)
    bound = guess.threshold
    if bound is None:
        bound = uniform(line.seed ^ _ACCEPTANCE, line.index, position)
    if float(probs[token]) > 0.0 and bound * float(q[token]) <= float(probs[token]):
        return token
    rest = (probs - q).clamp_(min=0.0)
    if not bool(rest.any()):  # p is q up to rounding
        rest = probs
    mass = rest.cumsum(-1)
    place = int((mass <= uniform(line.seed, line.index, position) * mass[-1]).sum())
    return min(place, int(rest.nonzero()[-1]))


@dataclass(slots=True, eq=False)
class Take:
    """A sequence that takes tokens: after `i` accepted tokens of its draft, from row `first + i`."""

    sequence: Line
    first: int
    draft: tuple[int, ...] = ()
    sampled: list[Sampled] = field(default_factory=list)  # the result: all but the last are the draft's


def take_tokens(
    takes: Sequence[Take],
    sample: Callable[[list[int], list[Line]], list[Sampled]],
) -> None:
    """Fill `sampled` of each: one token, and another for each token of its draft that was right.

    `sample(rows, lines)` draws one token a row. The lines are as before when this returns or raises.
    """
    lengths = [len(take.sequence.token_ids) for take in takes]
    for take in takes:
        take.sampled.clear()
    try:
        left = list(takes)
        while left:
            drawn = sample([t.first + len(t.sampled) for t in left], [t.sequence for t in left])
            left = [take for take, one in zip(left, drawn, strict=True) if _follows(take, one)]
    finally:
        for take, length in zip(takes, lengths, strict=True):
            del take.sequence.token_ids[length:]


def _follows(take: Take, drawn: Sampled) -> bool:
    """Note a token; whether it is the draft's, and the sequence then goes on behind it."""
    place = len(take.sampled)
    if drawn.error is not None and place:
        return False  # the next step will find the same, and tell
    take.sampled.append(drawn)
    if drawn.error is not None or place >= len(take.draft) or drawn.token_id != take.draft[place]:
        return False
    take.sequence.token_ids.append(drawn.token_id)
    return True
