"""Beam search: rows of log-probabilities -> which beams continue, and with which tokens.

The score of a hypothesis is sum(log-probabilities) / length ** length_penalty, with its end token counted.
The search of one group of beams is that of transformers' `generate`, step for step and tie for tie:

- Of the width x V continuations, the best `width` x (1 + number of end tokens) are considered. A continuation
that ends (by an end token or the length) becomes a hypothesis if it is among the best `width`. The best
`width` of those that do not end are the next beams.
- The search is over when there are `width` hypotheses and the best beam's promise is no higher than the worst
of their scores. The promise of a beam is its sum / length ** length_penalty
  at its *present* length. With a positive penalty, a longer hypothesis has a larger divisor, so this promise
  is too low: `NO` is a heuristic and may miss a better hypothesis.
  With `NEVER` the promise is taken at the *longest* length, which is exact unless an edit makes a
  log-probability positive. `YES` ends the search as soon as there are `width` hypotheses.
- Ties are `torch.topk`'s.

Log-probabilities are normalised first and then edited, as in transformers: a repetition
penalty multiplies them, and masked tokens do not change the others.

Several groups search side by side, and each keeps its own hypotheses. At each step, `diversity_penalty` is
subtracted from a token's log-probability once for each earlier group in which a beam took that token. Like
every edit, the penalty stays in the sum.

Works on sequences that the caller forks, without blocks, queues or time.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import Final

import torch

from serve_app.engine.sampling.sampled import Scored
from serve_app.engine.sequence import Sequence
from serve_app.types import Beam, EarlyStopping, FinishReason, PositionLogprobs

# The score of a beam or hypothesis that does not exist yet, as in transformers.
NOTHING: Final = -1.0e9

# (beam, its next token) -> why the beam ends there, or None.
End = abc.Callable[[Sequence, int], FinishReason | None]


@dataclass(slots=True, frozen=True)
class Hypothesis:
    """The output of a beam that has ended."""

    token_ids: tuple[int, ...]
    score: float
    finish: FinishReason
    logprobs: tuple[PositionLogprobs, ...]  # one a token, when asked for
    logits: tuple[bytes, ...] = ()  # one row a token, when asked for


@dataclass(slots=True, frozen=True)
class Branch:
    """A beam of the next step: a beam of this step with one more token."""

    parent: Sequence
    token_id: int
    logprob: PositionLogprobs | None
    logits: bytes | None = None


class BeamGroup:
    """The beams of one group, best first, and the hypotheses that it has found."""

    def __init__(
        self, options: Beam, leader: Sequence, *, end: End, num_end_tokens: int, max_output: int
    ) -> None:
        """`leader` has computed the prompt; every beam ends after `max_output` output tokens."""
        self.width = options.width // options.groups
        self.beams = [leader] * self.width
        self.over = False
        self._options = options
        self._end = end
        self._num_candidates = max(2, 1 + num_end_tokens) * self.width
        self._max_output = max_output
        # All beams are equal at first: only one of them counts, until they differ.
        self._sums = torch.full((self.width,), NOTHING)
        self._sums[0] = 0.0
        self._scores = torch.full((self.width,), NOTHING)  # of `_hypotheses`, best first
        self._hypotheses: list[Hypothesis | None] = [None] * self.width

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """The best hypotheses so far, best first, at most `width`."""
        return [hypothesis for hypothesis in self._hypotheses if hypothesis is not None]

    def step(self, rows: abc.Mapping[Sequence, Scored], taken: abc.Mapping[int, int]) -> list[Branch]:
        """The next beams; none when the search is over.

        `rows` has the scores of every beam. `taken` counts, for each token, the earlier groups in which a
        beam took that token in this step.
        """
        log_probs = torch.stack([rows[beam].log_probs for beam in self.beams])  # [width, V]
        if taken and self._options.diversity_penalty:
            tokens = torch.tensor(list(taken), device=log_probs.device)
            counts = torch.tensor(list(taken.values()), dtype=torch.float32, device=log_probs.device)
            log_probs[:, tokens] -= self._options.diversity_penalty * counts
        sums, places = self._best_continuations(log_probs)
        vocab_size = log_probs.shape[1]
        length = self.beams[0].num_output + 1
        branches = [
            Branch(beam, token, None)
            for beam, token in ((self.beams[p // vocab_size], p % vocab_size) for p in places)
        ]
        finishes = [self._end(branch.parent, branch.token_id) for branch in branches]
        ended = torch.tensor([finish is not None for finish in finishes])
        self._keep_hypotheses(rows, sums, branches, finishes, ended, length)

        sums = sums + ended * NOTHING
        chosen = sums.topk(self.width).indices
        self._sums = sums[chosen]
        self.over = bool(ended.all()) or bool(sums.max() == -torch.inf) or not self._improvable(length)
        if self.over:
            self.beams = []
            return []
        return [_with_scores(branches[i], rows) for i in chosen.tolist()]

    def _best_continuations(self, log_probs: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Sums [k] and places in the flat [width * V], for the best continuations, best first."""
        totals = (log_probs + self._sums.to(log_probs.device)[:, None]).flatten()
        best = totals.topk(min(self._num_candidates, totals.numel()))
        return best.values.cpu(), best.indices.tolist()

    def _keep_hypotheses(
        self,
        rows: abc.Mapping[Sequence, Scored],
        sums: torch.Tensor,
        branches: abc.Sequence[Branch],
        finishes: abc.Sequence[FinishReason | None],
        ended: torch.Tensor,
        length: int,
    ) -> None:
        """Add to the hypotheses those of the best `width` continuations that have ended."""
        # A continuation of a beam that does not count yet repeats another continuation.
        ended = ended & (torch.arange(len(branches)) < self.width) & (sums > NOTHING / 2)
        scores = torch.cat([self._scores, sums / length**self._options.length_penalty + ~ended * NOTHING])
        chosen = scores.topk(self.width).indices
        self._scores = scores[chosen]
        kept: list[Hypothesis | None] = []
        for i in chosen.tolist():
            new = i - self.width
            finish = finishes[new] if new >= 0 and ended[new] else None
            if finish is not None:
                kept.append(_hypothesis(_with_scores(branches[new], rows), float(scores[i]), finish))
            else:
                kept.append(self._hypotheses[i] if new < 0 else None)
        self._hypotheses = kept

    def _improvable(self, length: int) -> bool:
        """Whether the search should go on, according to its rule for stopping early."""
        rule, penalty = self._options.early_stopping, self._options.length_penalty
        there = torch.tensor([hypothesis is not None for hypothesis in self._hypotheses])
        if rule is EarlyStopping.YES and bool(there.all()):
            return False
        longest = self._max_output if rule is EarlyStopping.NEVER and penalty > 0 else length
        promised = self._sums[0] / longest**penalty
        return bool((promised > torch.where(there, self._scores.min(), NOTHING)).any())


class BeamSearch:
    """All groups of one request, in lockstep."""

    def __init__(
        self, options: Beam, leader: Sequence, *, end: End, num_end_tokens: int, max_output: int
    ) -> None:
        """See BeamGroup."""
        self._groups = [
            BeamGroup(options, leader, end=end, num_end_tokens=num_end_tokens, max_output=max_output)
            for _ in range(options.groups)
        ]

    @property
    def over(self) -> bool:
        return all(group.over for group in self._groups)

    def hypotheses(self) -> list[Hypothesis]:
        """The hypotheses of all groups, best first; on equal scores, the one of the earlier group first."""
        found = [hypothesis for group in self._groups for hypothesis in group.hypotheses]
        return sorted(found, key=lambda hypothesis: -hypothesis.score)

    def advance(
        self, rows: abc.Mapping[Sequence, Scored], fork: abc.Callable[[Sequence], Sequence]
    ) -> list[Sequence]:
        """Give every beam its next token; returns the sequences that no beam continues.

        `rows` has the scores of every beam. `fork(sequence)` makes a new sequence equal to `sequence`.
        """
        before = {beam: None for group in self._groups for beam in group.beams}
        taken: dict[int, int] = {}
        chosen: list[tuple[BeamGroup, list[Branch]]] = []
        for group in self._groups:
            if not group.over:
                branches = group.step(rows, taken)
                for token in {branch.token_id for branch in branches}:
                    taken[token] = taken.get(token, 0) + 1
                chosen.append((group, branches))
        # All forks come before any token: the sequence of a beam continues as one of its own branches.
        reused: set[Sequence] = set()
        for group, branches in chosen:
            group.beams = [branch.parent for branch in branches]
            for i, beam in enumerate(group.beams):
                if beam in reused:
                    group.beams[i] = fork(beam)
                reused.add(beam)
        for group, branches in chosen:
            for beam, branch in zip(group.beams, branches, strict=True):
                beam.token_ids.append(branch.token_id)
                if branch.logprob is not None:
                    beam.output_logprobs.append(branch.logprob)
                if branch.logits is not None:
                    beam.output_logits.append(branch.logits)
        return [beam for beam in before if beam not in reused]


def _with_scores(branch: Branch, rows: abc.Mapping[Sequence, Scored]) -> Branch:
    """The branch, with its log-probability and, if the request asked for them, its logits."""
    scored = rows[branch.parent]
    return Branch(branch.parent, branch.token_id, scored.logprob_of(branch.token_id), scored.logits)


def _hypothesis(branch: Branch, score: float, finish: FinishReason) -> Hypothesis:
    parent = branch.parent
    logprobs = () if branch.logprob is None else (*parent.output_logprobs, branch.logprob)
    logits = () if branch.logits is None else (*parent.output_logits, branch.logits)
    return Hypothesis((*parent.output_ids, branch.token_id), score, finish, logprobs, logits)
