"""Rows of logits -> what they say about each chunk: tokens, log-probabilities, or an error.

Knows which row belongs to which sequence, and keeps one row's trouble from the
others. Changes no sequence: that is the commit's part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch

from serve_app.engine.model.isolation import Ran
from serve_app.engine.request.tensors import row_bytes
from serve_app.engine.sampling.logprobs import prompt_logprobs
from serve_app.engine.sampling.sampler import Sampled, Scored
from serve_app.engine.sampling.speculative import Take, take_tokens
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.errors import GenerationFailed, NumericalError
from serve_app.types import ErrorInfo, PositionLogprobs

log = logging.getLogger(__name__)


def generation_failed() -> ErrorInfo:
    return GenerationFailed("The model failed while generating this answer.").info()


def not_finite() -> ErrorInfo:
    return NumericalError("The model produced numbers that are not finite.").info()


class RowSampler(Protocol):
    """Chooses a token a row; reports a bad row as `Sampled.error` and never raises for it."""

    def sample(self, logits: torch.Tensor, sequences: Seq[Sequence]) -> list[Sampled]: ...

    def score(self, logits: torch.Tensor, sequences: Seq[Sequence]) -> list[Scored]:
        """The same for beams, whose tokens a search chooses."""
        ...

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """`child` goes on from where `parent` is."""
        ...


@dataclass(slots=True)
class Reading:
    """What a step said about one chunk."""

    chunk: Chunk
    takes: list[Take] = field(default_factory=list)  # by none, the sequence, or it and its forks
    logits: list[list[bytes]] = field(default_factory=list)  # of each take's tokens, when asked for
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    context_logits: list[bytes] = field(default_factory=list)  # one a prompt token
    scored: Scored | None = None  # of a beam, which gets no token yet
    error: ErrorInfo | None = None


class RowReader:
    """Reads the logits of chunks that ran together."""

    def __init__(
        self,
        sampler: RowSampler,
        *,
        members: Callable[[Sequence], list[Sequence]],
        recompute: Callable[[Chunk], torch.Tensor],
    ) -> None:
        """`members(sequence)`: the sequences that take a token from this sequence's last row.

        `recompute(chunk)`: its logits once more, when a sampler failed after editing them.
        """
        self._sampler = sampler
        self._members = members
        self._recompute = recompute

    @torch.inference_mode()  # the logits were made in it, and samplers edit them in place
    def read(self, ran: Ran) -> list[Reading]:
        """One reading a chunk."""
        readings: list[Reading] = []
        beams: list[tuple[Reading, int]] = []
        row = 0
        for chunk in ran.chunks:
            if _is_late(chunk):  # as if it had not run: it will be scheduled again
                row += chunk.num_logits
                continue
            reading = Reading(chunk)
            if chunk.sequence.wanted_from is not None and chunk.num_logits:
                self._read_prompt(reading, ran.logits[row : row + chunk.num_logits])
            row += chunk.num_logits
            last = row - 1 - len(chunk.draft)  # of the sequence's own tokens
            if chunk.samples and reading.error is None and chunk.sequence.gang is not None:
                beams.append((reading, last))
            elif chunk.samples and reading.error is None:
                reading.takes = [Take(s, last, chunk.draft) for s in self._members(chunk.sequence)]
            readings.append(reading)
        if beams:
            self._score(beams, ran.logits)  # before the logits are edited
        self._sample(readings, ran.logits)
        return readings

    def _read_prompt(self, reading: Reading, logits: torch.Tensor) -> None:
        """`logits` [k, V] are those of the positions `first_logit` .. `end-1`."""
        chunk, sequence = reading.chunk, reading.chunk.sequence
        logits = logits[: sequence.prompt_len - chunk.first_logit]
        known = len(sequence.prompt_logprobs)
        following: list[int] = []
        if sequence.num_prompt_logprobs is not None:
            following = sequence.token_ids[known + 1 : min(chunk.own_end + 1, sequence.prompt_len)]
        try:
            # A model may give -inf to a token it masks; NaN and +inf fail this comparison.
            if not bool((logits < torch.inf).all()):
                reading.error = not_finite()
                return
            if following:
                own = logits[known - chunk.first_logit :][: len(following)]
                reading.prompt_logprobs = prompt_logprobs(own, following, sequence.num_prompt_logprobs or 0)
            if sequence.context_logits is not None:
                new = logits[len(sequence.context_logits) - chunk.first_logit :]
                reading.context_logits = [row_bytes(row) for row in new]
        except Exception:
            log.exception("the prompt's logits of request %s failed", sequence.request_id)
            reading.error = generation_failed()

    def _score(self, beams: list[tuple[Reading, int]], logits: torch.Tensor) -> None:
        """Fill `scored` of readings, each of which has a row of the logits."""
        rows = torch.tensor([row for _, row in beams], device=logits.device)
        try:
            scored = self._sampler.score(logits[rows], [reading.chunk.sequence for reading, _ in beams])
            for (reading, _), outcome in zip(beams, scored, strict=True):
                reading.scored = outcome
        except Exception:
            request_ids = {reading.chunk.sequence.request_id for reading, _ in beams}
            log.exception("scoring %d beams of %d requests failed", len(beams), len(request_ids))
            if len(beams) == 1:
                beams[0][0].error = generation_failed()
                return
            for beam in beams:
                self._score([beam], logits)

    def _sample(self, readings: list[Reading], logits: torch.Tensor) -> None:
        """Let the readings' sequences take their tokens."""
        takes = [take for reading in readings for take in reading.takes]
        try:
            self._take(takes, logits)
        except Exception:
            log.exception("sampling %d rows failed; each chunk is tried alone", len(takes))
            for reading in readings:
                self._sample_alone(reading)
            return
        for reading in readings:
            self._keep_logits(reading, logits)

    def _take(self, takes: list[Take], logits: torch.Tensor) -> None:
        # Samplers edit in place: not the rows that are wanted as they are, or wanted again.
        once = not any(take.draft or take.sequence.wants_logits for take in takes)

        def sample(rows: list[int], lines: list[Sequence]) -> list[Sampled]:
            if once and rows == list(range(logits.shape[0])):
                return self._sampler.sample(logits, lines)
            return self._sampler.sample(logits[torch.tensor(rows, device=logits.device)], lines)

        if takes:
            take_tokens(takes, sample)

    @staticmethod
    def _keep_logits(reading: Reading, logits: torch.Tensor) -> None:
        """Note the raw rows from which the tokens were chosen."""
        for take in reading.takes:
            rows = logits[take.first : take.first + len(take.sampled)] if take.sequence.wants_logits else ()
            reading.logits.append([row_bytes(row) for row in rows])

    def _sample_alone(self, reading: Reading) -> None:
        if not reading.takes:
            return
        try:
            logits = self._recompute(reading.chunk)
            for take in reading.takes:
                take.first = len(logits) - 1 - len(take.draft)
            self._take(reading.takes, logits)
            self._keep_logits(reading, logits)
        except Exception:
            log.exception("sampling for request %s failed", reading.chunk.sequence.request_id)
            reading.error = generation_failed()


def _is_late(chunk: Chunk) -> bool:
    """Whether the grammar of a sequence needs longer for its mask; beams wait, since they go on together."""
    constraint, gang = chunk.sequence.constraint, chunk.sequence.gang
    return constraint is not None and gang is None and chunk.samples and constraint.late()
