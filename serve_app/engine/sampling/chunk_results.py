"""Logits of a step -> the result of each chunk: tokens, log-probabilities, or an error.

This module assigns rows to sequences. A row that fails does not affect the others.
It changes no sequence: the engine commits the results.
"""

from __future__ import annotations

import logging
from collections import abc
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from serve_app.engine.batch import Fed, ForwardResult
from serve_app.engine.request.tensors import row_bytes
from serve_app.engine.sampling.choice import Choice
from serve_app.engine.sampling.logprobs import prompt_logprobs
from serve_app.engine.sampling.sampled import Sampled, Scored
from serve_app.engine.sampling.verification import SamplingTask, sample_tokens
from serve_app.engine.sequence import Chunk, Sequence, Status
from serve_app.engine.torch_cpu import few_threads, is_out_of_memory
from serve_app.engine.transfer import Receipt, send
from serve_app.errors import GenerationFailed, NumericalError
from serve_app.types import ErrorInfo, PositionLogprobs

log = logging.getLogger(__name__)


def failure(*, starved: bool = False) -> ErrorInfo:
    """The public error of a failed request; `starved`: it failed because memory ran out."""
    if not starved:
        return GenerationFailed("The model failed while generating this answer.").info()
    return GenerationFailed(
        "The model ran out of memory with this request; ask for less at once (a shorter prompt, fewer "
        "choices or log-probabilities), or try again later."
    ).info()


def not_finite() -> ErrorInfo:
    return NumericalError("The model produced numbers that are not finite.").info()


class RowSampler(Protocol):
    """Chooses one token for each row; reports a bad row as an error of that row, instead of raising one."""

    def sample(
        self, logits: torch.Tensor, sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int] | None = None
    ) -> list[Sampled]:
        """`ahead[r]`: how many tokens are between the end of `sequences[r]` and the one of row r; None: 0."""
        ...

    def choose(self, logits: torch.Tensor, sequences: abc.Sequence[Sequence]) -> Choice:
        """As `sample`, for at least one row, but does not wait for the device."""
        ...

    def by_row(self, sequence: Sequence) -> bool:
        """Whether each next token of a sequence depends only on its position and its own row of logits."""
        ...

    def score(self, logits: torch.Tensor, sequences: abc.Sequence[Sequence]) -> list[Scored]:
        """Score every next token of beams, for a search to choose from."""
        ...

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Note that `child` is currently equal to `parent`."""
        ...


@dataclass(slots=True)
class ChunkResult:
    """The result of one chunk, from the logits of a step."""

    chunk: Chunk
    # One task for each sequence that gets tokens: none inside the prompt; at its end also the forks.
    tasks: list[SamplingTask] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    context_logits: list[bytes] = field(default_factory=list)  # one row a prompt token
    scored: Scored | None = None  # of a beam, whose token the search chooses
    error: ErrorInfo | None = None


@dataclass(slots=True)
class ChosenTokens:
    """The results of a step whose tokens are on the device and not yet needed by the host."""

    results: list[ChunkResult]  # with tasks whose tokens are missing
    choice: Choice | None  # None: no chunk samples
    last: Receipt | None = None  # the step's last result, if nothing is chosen

    def fed(self) -> Fed | None:
        """The tokens for the next step."""
        if self.choice is None:
            return None
        sequences = (task.sequence for result in self.results for task in result.tasks)
        return Fed(self.choice.tokens, {sequence: row for row, sequence in enumerate(sequences)})

    def read(self) -> list[ChunkResult]:
        """The results with their tokens; waits for the device."""
        if self.last is not None:
            self.last.wait()
        if self.choice is not None:
            tasks = (task for result in self.results for task in result.tasks)
            for task, sampled in zip(tasks, self.choice.read(), strict=True):
                task.sampled = [sampled]
        return self.results


class LogitsReader:
    """Reads the logits of chunks that ran together."""

    def __init__(
        self,
        sampler: RowSampler,
        members: abc.Callable[[Sequence], list[Sequence]],
        recompute: abc.Callable[[Chunk], torch.Tensor],
    ) -> None:
        """`members(sequence)`: the sequences that each get a token from the last row of `sequence`.

        `recompute(chunk)`: computes the logits of a chunk again, after a sampler has edited the logits and
        failed.
        """
        self._sampler = sampler
        self._members = members
        self._recompute = recompute

    @torch.inference_mode()  # the logits were made in it, and samplers edit them in place
    def read(self, forward: ForwardResult, spoilt: bool = False) -> list[ChunkResult]:
        """The result of every chunk; a chunk whose mask is late, or whose sequence has ended, has no result.

        `spoilt`: a failed sampler has edited the logits, so they are computed again.
        """
        results: list[ChunkResult] = []
        beams: list[tuple[ChunkResult, int]] = []
        row = 0
        for chunk in forward.chunks:
            # Without a result, a chunk that is late is scheduled again by the next step.
            if chunk.sequence.status is Status.FINISHED or _is_late(chunk):
                row += chunk.num_logits
                continue
            result = ChunkResult(chunk)
            if chunk.sequence.wanted_from is not None and chunk.num_logits:
                self._read_prompt(result, forward.logits[row : row + chunk.num_logits])
            row += chunk.num_logits
            last = row - 1 - len(chunk.draft)  # of the sequence's own tokens
            if chunk.samples and result.error is None and chunk.sequence.beam_set is not None:
                beams.append((result, last))
            elif chunk.samples and result.error is None:
                result.tasks = [SamplingTask(s, last, chunk.draft) for s in self._members(chunk.sequence)]
            results.append(result)
        if beams:
            self._score(beams, forward.logits)  # before the logits are edited
        if spoilt:
            for result in results:
                self._sample_alone(result)
        else:
            self._sample(results, forward.logits)
        return results

    @torch.inference_mode()
    def choose(self, forward: ForwardResult) -> ChosenTokens | None:
        """Choose the tokens of every chunk, without waiting for the device.

        All earlier tokens must be known. A chunk has no result if its mask is late or its sequence has ended.
        Returns None, and leaves the logits unchanged, if the host needs the tokens before it can prepare the
        next step.
        """
        if not all(map(self._runs_ahead, forward.chunks)):
            return None
        results, rows, row = list[ChunkResult](), list[int](), 0
        for chunk in forward.chunks:
            row += chunk.num_logits
            if chunk.sequence.status is Status.FINISHED or _is_late(chunk):
                continue
            results.append(ChunkResult(chunk))
            if chunk.samples:  # not if its grammar has forced the token meanwhile
                rows.append(row - 1)
                results[-1].tasks = [SamplingTask(chunk.sequence, row - 1)]
        logits = forward.logits
        if not rows:
            return ChosenTokens(
                results, None, Receipt([torch.empty(0, dtype=torch.int64, device=logits.device)])
            )
        if rows != list(range(logits.shape[0])):
            logits = logits[send(logits.device, np.array(rows, dtype=np.int64))[0]]
        sequences = [task.sequence for result in results for task in result.tasks]
        return ChosenTokens(results, self._sampler.choose(logits, sequences))

    def _runs_ahead(self, chunk: Chunk) -> bool:
        """Whether the step after a chunk can be prepared before the chunk's token is known."""
        sequence = chunk.sequence
        if sequence.status is Status.FINISHED:
            return True
        if sequence.wanted_from is not None or sequence.beam_set is not None:
            return False
        if not chunk.samples:
            return True
        told = sequence.wants_logits or sequence.context_logits is not None
        guessed = sequence.proposer is not None or bool(sequence.drafted_ids)
        return not told and not guessed and len(self._members(sequence)) == 1

    def _read_prompt(self, result: ChunkResult, logits: torch.Tensor) -> None:
        """`logits` [k, V] are those of the positions `first_logit` .. `end-1`."""
        chunk, sequence = result.chunk, result.chunk.sequence
        logits = logits[: sequence.prompt_len - chunk.first_logit]
        known = len(sequence.prompt_logprobs)
        following: list[int] = []
        if sequence.num_prompt_logprobs is not None:
            following = sequence.token_ids[known + 1 : min(chunk.own_end + 1, sequence.prompt_len)]
        try:
            # A model may give -inf to a token it masks; NaN and +inf fail this comparison.
            if not bool((logits < torch.inf).all()):
                result.error = not_finite()
                return
            if following:
                own = logits[known - chunk.first_logit :][: len(following)]
                result.prompt_logprobs = prompt_logprobs(own, following, sequence.num_prompt_logprobs or 0)
            if sequence.context_logits is not None:
                new = logits[len(sequence.context_logits) - chunk.first_logit :]
                result.context_logits = [row_bytes(row) for row in new]
        except Exception as error:
            log.exception("the prompt's logits of request %s failed", sequence.request_id)
            result.error = failure(starved=is_out_of_memory(error))

    def _score(self, beams: list[tuple[ChunkResult, int]], logits: torch.Tensor) -> None:
        """Fill `scored` of each of `beams`, which are pairs of a result and its row of the logits."""
        rows = torch.tensor([row for _, row in beams], device=logits.device)
        try:
            with few_threads(logits.device, logits.numel()):
                scored = self._sampler.score(logits[rows], [result.chunk.sequence for result, _ in beams])
            for (result, _), outcome in zip(beams, scored, strict=True):
                result.scored = outcome
        except Exception as error:
            request_ids = {result.chunk.sequence.request_id for result, _ in beams}
            log.exception("scoring %d beams of %d requests failed", len(beams), len(request_ids))
            if len(beams) == 1:
                beams[0][0].error = failure(starved=is_out_of_memory(error))
                return
            for beam in beams:
                self._score([beam], logits)

    def _sample(self, results: list[ChunkResult], logits: torch.Tensor) -> None:
        """Sample the tokens of all tasks of the results."""
        tasks = [task for result in results for task in result.tasks]
        try:
            self._run_tasks(tasks, logits)
        except Exception:
            log.exception("sampling %d rows failed; each chunk is tried alone", len(tasks))
            for result in results:
                self._sample_alone(result)
            return
        for result in results:
            self._keep_logits(result, logits)

    def _run_tasks(self, tasks: list[SamplingTask], logits: torch.Tensor) -> None:
        # Samplers edit logits in place: rows that are needed raw, or a second time, are copied first.
        by_row = self._sampler.by_row
        once = not any((t.draft and not by_row(t.sequence)) or t.sequence.wants_logits for t in tasks)

        def sample(rows: list[int], sequences: list[Sequence], ahead: list[int]) -> list[Sampled]:
            if once and rows == list(range(logits.shape[0])):
                return self._sampler.sample(logits, sequences, ahead)
            with few_threads(logits.device, logits.numel()):
                copied = logits[send(logits.device, np.array(rows, dtype=np.int64))[0]]
            return self._sampler.sample(copied, sequences, ahead)

        if tasks:
            sample_tokens(tasks, sample, by_row)

    @staticmethod
    def _keep_logits(result: ChunkResult, logits: torch.Tensor) -> None:
        """Keep the raw rows from which tokens were chosen, if the request asked for logits."""
        for task in result.tasks:
            end = task.first_row + len(task.sampled)
            rows = logits[task.first_row : end] if task.sequence.wants_logits else ()
            task.logits = [row_bytes(row) for row in rows]

    def _sample_alone(self, result: ChunkResult) -> None:
        if not result.tasks:
            return
        try:
            logits = self._recompute(result.chunk)
            for task in result.tasks:
                task.first_row = len(logits) - 1 - len(task.draft)
            self._run_tasks(result.tasks, logits)
            self._keep_logits(result, logits)
        except Exception as error:
            log.exception("sampling for request %s failed", result.chunk.sequence.request_id)
            result.error = failure(starved=is_out_of_memory(error))


def _is_late(chunk: Chunk) -> bool:
    """Whether the mask of a sequence's grammar needs more time. Always false for beams: these advance
    together, so they wait for a mask."""
    constraint, beam_set = chunk.sequence.constraint, chunk.sequence.beam_set
    return constraint is not None and beam_set is None and chunk.samples and constraint.late()
