"""Rows of logits -> what they say about each chunk: tokens, log-probabilities, or an error.

Knows which row belongs to which sequence, and keeps one row's trouble from the
others. Changes no sequence: that is the commit's part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch

from serve_app.engine.isolation import Ran
from serve_app.engine.logprobs import prompt_logprobs
from serve_app.engine.sampler import Sampled, Scored
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
    sequences: list[Sequence]  # those that get a token: none, the chunk's own, or it and its forks
    sampled: list[Sampled]  # one a sequence
    prompt_logprobs: list[PositionLogprobs]
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
        rows: list[int] = []
        sequences: list[Sequence] = []
        beams: list[tuple[Reading, int]] = []
        row = 0
        for chunk in ran.chunks:
            if _is_late(chunk):  # as if it had not run: it will be scheduled again
                row += chunk.num_logits
                continue
            reading = Reading(chunk, [], [], [])
            if chunk.sequence.wants_prompt_logprobs and chunk.num_logits:
                self._read_prompt(reading, ran.logits[row : row + chunk.num_logits])
            row += chunk.num_logits
            if chunk.samples and reading.error is None and chunk.sequence.gang is not None:
                beams.append((reading, row - 1))
            elif chunk.samples and reading.error is None:
                reading.sequences = self._members(chunk.sequence)
                rows += [row - 1] * len(reading.sequences)
                sequences += reading.sequences
            readings.append(reading)
        if beams:
            self._score(beams, ran.logits)  # before the logits are edited
        self._sample(readings, sequences, ran.logits, rows)
        return readings

    def _read_prompt(self, reading: Reading, logits: torch.Tensor) -> None:
        """`logits` [k, V] are those of the positions `first_logit` .. `end-1`."""
        chunk, sequence = reading.chunk, reading.chunk.sequence
        following = sequence.token_ids[chunk.first_logit + 1 : min(chunk.end + 1, sequence.prompt_len)]
        logits = logits[: len(following)]
        try:
            # A model may give -inf to a token it masks; NaN and +inf fail this comparison.
            if not bool((logits < torch.inf).all()):
                reading.error = not_finite()
            elif following:
                reading.prompt_logprobs = prompt_logprobs(
                    logits, following, sequence.num_prompt_logprobs or 0
                )
        except Exception:
            log.exception("prompt log-probabilities of request %s failed", sequence.request_id)
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

    def _sample(
        self, readings: list[Reading], sequences: list[Sequence], logits: torch.Tensor, rows: list[int]
    ) -> None:
        """Fill `sampled` of the readings, whose `sequences` in order take the logits' `rows`."""
        if not sequences:
            return
        if rows != list(range(logits.shape[0])):
            logits = logits[torch.tensor(rows, device=logits.device)]
        try:
            sampled = iter(self._sampler.sample(logits, sequences))
        except Exception:
            log.exception("sampling %d rows failed; each chunk is tried alone", len(rows))
            for reading in readings:
                self._sample_alone(reading)
            return
        for reading in readings:
            reading.sampled = [next(sampled) for _ in reading.sequences]

    def _sample_alone(self, reading: Reading) -> None:
        if not reading.sequences:
            return
        try:
            last = self._recompute(reading.chunk)[-1:]
            reading.sampled = self._sampler.sample(last.repeat(len(reading.sequences), 1), reading.sequences)
        except Exception:
            log.exception("sampling for request %s failed", reading.chunk.sequence.request_id)
            reading.error = generation_failed()


def _is_late(chunk: Chunk) -> bool:
    """Whether the grammar of a sequence needs longer for its mask; beams wait, since they go on together."""
    constraint, gang = chunk.sequence.constraint, chunk.sequence.gang
    return constraint is not None and gang is None and chunk.samples and constraint.late()
