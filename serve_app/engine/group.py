"""A request inside the engine: its sequences, its beam search, and its outputs for the client."""

from __future__ import annotations

import secrets
from collections import abc
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch

from serve_app.engine.finish import EndRule
from serve_app.engine.request.client_draft import ClientDraft
from serve_app.engine.request.processors import LogitsProcessor
from serve_app.engine.request.prompt_rows import PromptRows
from serve_app.engine.request.tensors import from_rows, to_torch
from serve_app.engine.sampling.beam import BeamSearch
from serve_app.engine.sampling.verification import SamplingTask
from serve_app.engine.sequence import BeamSet, Proposer, Sequence
from serve_app.errors import InvalidField
from serve_app.types import (
    EngineOutput,
    EngineRequest,
    ErrorInfo,
    FinishReason,
    Perf,
    PositionLogprobs,
    StepTiming,
    Tensor,
    Timing,
)

NO_HYPOTHESIS: Final = InvalidField("n", "the masks of this request leave fewer answers.").info()


class StepStart(NamedTuple):
    """When a step began, in seconds of the engine's clock, and how many sequences it computes."""

    began: float
    sequences: int


@dataclass(slots=True, eq=False)
class Group:
    """The sequences of one request: the `n` choices, or the beams of its search.

    Until the prompt is computed there is one sequence, the leader (index 0). The others are forked from the
    leader when they get their first token. An answer that is being continued has no leader: each of its
    unfinished choices is a sequence from the start, and computes the prompt and its own tokens itself. `open`
    has the indices of all sequences, forked or not, whose end has not been reported. Beams are numbered in
    the order in which they are made; the `n` hypotheses are numbered at the end of the search.
    """

    request: EngineRequest
    arrival: int  # serial number
    arrived: float  # clock, seconds
    seed: int
    processors: tuple[LogitsProcessor, ...] = ()
    bias: torch.Tensor | None = None
    prompt_rows: PromptRows | None = None
    client_draft: ClientDraft | None = None
    new_proposer: abc.Callable[[], Proposer] | None = None
    open: set[int] = field(default_factory=set)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    forked: bool = False
    started: float | None = None
    cached_tokens: int = 0
    beam_set: BeamSet | None = None
    search: BeamSearch | None = None  # once the prompt of a beam request is computed
    searched: int = 0  # tokens computed for its beams
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()  # of a search; else the leader has them
    context_logits: list[bytes] | None = None  # of a search; else the leader has them
    first_token_at: float | None = None  # of a search
    cached_blocks: int = 0
    last_token_at: float | None = None  # of a search; clock, seconds
    steps: list[StepTiming] = field(default_factory=list)  # of a search, when the client wants step times
    _num_beams: int = 1  # made so far, with the leader

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        arrival: int,
        now: float,
        processors: tuple[LogitsProcessor, ...] = (),
        new_proposer: abc.Callable[[], Proposer] | None = None,
    ) -> Group:
        """A group with its first sequences; draws the seed that the client left open."""
        seed, arrived = request.sampling.seed, now - request.age_s
        group = cls(request, arrival, arrived, secrets.randbits(64) if seed is None else seed, processors)
        group.open = set(range(request.n))
        group.bias = None if request.bias is None else to_torch(request.bias)
        if request.prompt_table is not None:
            group.prompt_rows = PromptRows.of(request.prompt_table)
        group.client_draft = None if request.draft is None else ClientDraft.of(request.draft)
        group.new_proposer = None if request.beam is not None else new_proposer
        if request.begun:
            group._go_on(now)
            return group
        leader = group.sequences[0] = group._sequence(0)
        if request.beam is not None:
            group.beam_set = leader.beam_set = BeamSet(request.beam.width, [leader])
        return group

    def _go_on(self, now: float) -> None:
        """Make the sequences of the unfinished choices; the scheduler treats them like preempted sequences.

        The wait for their next token is counted from `now`, because the time of their previous token is
        unknown.
        """
        for index, choice in enumerate(self.request.begun):
            timing = choice.timing
            if timing is not None and self.started is None:
                self.started = min(now, self.arrived + timing.queue_s)
            if choice.finished:
                self.open.discard(index)
                continue
            sequence = self.sequences[index] = self._sequence(index)
            sequence.token_ids += choice.token_ids
            sequence.last_token_at = now if choice.token_ids else None
            if timing is not None:
                sequence.first_token_at = min(now, self.arrived + timing.first_token_s)
        self.forked = True

    def start(self, sequence: Sequence, now: float) -> None:
        """Note that the first of the sequences has been admitted, with its cached prefix."""
        self.started = now
        self.cached_tokens, self.cached_blocks = sequence.num_computed, sequence.num_indexed

    @property
    def can_cut(self) -> bool:
        """Whether one sequence can end alone.

        In a search no output is known before the end, and the leader is needed until the others are forked
        from it.
        """
        return self.beam_set is None and (self.forked or self.request.n == 1)

    @property
    def leader(self) -> Sequence:
        return self.sequences[0]

    def siblings(self) -> list[Sequence]:
        """New sequences, to be forked from the leader, whose prompt has just been computed."""
        made = [self._sequence(index) for index in range(1, self.request.n)]
        if self.leader.constraint is not None:
            for sequence in made:
                sequence.constraint = self.leader.constraint.fork()
        return made

    def new_beam(self, parent: Sequence) -> Sequence:
        """A new beam with the tokens of its parent; the scheduler is to fork it."""
        beam = self._sequence(self._num_beams)
        self._num_beams += 1
        beam.token_ids = list(parent.token_ids)
        beam.output_logprobs = list(parent.output_logprobs)
        beam.output_logits = list(parent.output_logits)
        beam.beam_set = self.beam_set
        beam.constraint = None if parent.constraint is None else parent.constraint.fork()
        return beam

    def begin_search(self, ends: EndRule, window: int) -> BeamSearch:
        """Start the search with the leader as its first beam; `window` is the longest sequence, in tokens."""
        request, leader = self.request, self.leader
        sampling, room = request.sampling, window - leader.prompt_len
        if request.beam is None:
            raise ValueError("a request without a beam has no search")

        def end(beam: Sequence, token: int) -> FinishReason | None:
            return ends.reason(beam, token, room)

        self.forked = True
        self.prompt_logprobs = tuple(leader.prompt_logprobs)
        self.context_logits, leader.context_logits = leader.context_logits, None
        self.search = BeamSearch(
            request.beam,
            leader,
            end=end,
            num_end_tokens=len(ends.end_tokens(sampling)),
            max_output=room if sampling.max_tokens is None else min(room, sampling.max_tokens),
        )
        return self.search

    def tell_tokens(
        self,
        task: SamplingTask,
        count: int,
        leader: Sequence,
        finish: FinishReason | None,
        now: float,
        steps: tuple[StepTiming, ...],
    ) -> EngineOutput:
        """An output with the last `count` tokens: those sampled in `task`, then those that a grammar forced.

        The first output of a sequence also has the fields of the prompt, which the leader has computed.
        """
        sequence, sampled, logits = task.sequence, task.sampled[:count], task.logits[:count]
        first = sequence.num_output == count
        tensors = {"generation_logits": from_rows(logits)} if logits else {}
        if first:
            sequence.first_token_at = now
            if sequence.context_logits is not None:
                tensors["context_logits"] = from_rows(sequence.context_logits)
                sequence.context_logits = None
        wants_prompt = first and self.request.prompt_logprobs is not None
        return EngineOutput(
            request_id=sequence.request_id,
            index=sequence.index,
            token_ids=tuple(sequence.token_ids[-count:]),
            logprobs=tuple(one.logprobs for one in sampled if one.logprobs is not None),
            prompt_logprobs=tuple(leader.prompt_logprobs) if wants_prompt else None,
            tensors=tensors,
            perf=None if finish is None else self._perf(sequence, len(sequence.block_table), now),
            finish=finish,
            by_sequence=self._by_sequence(finish, sequence.token_ids[-1]),
            cached_tokens=self.cached_tokens,
            timing=self.timing(now) if first else None,
            steps=steps * count,
        )

    def time_token(self, owner: Sequence | Group, now: float, step: StepStart) -> StepTiming:
        """The timing of a step for `owner`: a sequence, or this group, whose beams move as one."""
        last, owner.last_token_at = owner.last_token_at, now
        wait_s = step.began - (self.arrived if last is None else last)
        return StepTiming(batch_size=step.sequences, wait_s=wait_s, run_s=now - step.began)

    def note_search(self, count: int, now: float, step: StepStart) -> None:
        """Note that the beams took `count` tokens in `step`."""
        if self.request.timings:
            self.steps.append(self.time_token(self, now, step))
        self.searched += count
        self.first_token_at = now if self.first_token_at is None else self.first_token_at

    def tell_progress(self, computed: int) -> list[EngineOutput]:
        """An output without tokens that reports the work so far, if the client asked for progress.

        `computed` is the number of prompt tokens computed.
        """
        if not self.request.progress:
            return []
        output = EngineOutput(
            request_id=self.request.id,
            index=0,
            cached_tokens=min(self.cached_tokens, computed),
            computed=computed,
            searched=self.searched,
        )
        return [output]

    def tell_end(self, index: int, finish: FinishReason, error: ErrorInfo | None) -> EngineOutput:
        """An output without tokens that ends one sequence."""
        return EngineOutput(
            request_id=self.request.id,
            index=index,
            finish=finish,
            error=error,
            cached_tokens=self.cached_tokens,
        )

    def tell_hypotheses(self, now: float) -> list[EngineOutput]:
        """Outputs with the best hypotheses of a finished search; each output ends its choice."""
        request = self.request
        found = self.search.hypotheses()[: request.n] if self.search is not None else []
        self.open.difference_update(range(len(found)))
        blocks = max((len(beam.block_table) for beam in self.sequences.values()), default=0)
        return [
            EngineOutput(
                request_id=request.id,
                index=index,
                token_ids=hypothesis.token_ids,
                logprobs=hypothesis.logprobs,
                prompt_logprobs=self.prompt_logprobs if request.prompt_logprobs is not None else None,
                tensors=self._tensors(index, hypothesis.logits),
                perf=self._perf(self, blocks, now),
                finish=hypothesis.finish,
                by_sequence=self._by_sequence(hypothesis.finish, hypothesis.token_ids[-1]),
                cached_tokens=self.cached_tokens,
                timing=self.timing(now),
                steps=tuple(self.steps[: len(hypothesis.token_ids)]),
                searched=self.searched,
            )
            for index, hypothesis in enumerate(found)
        ]

    def _tensors(self, index: int, logits: tuple[bytes, ...]) -> dict[str, Tensor]:
        """The tensors of hypothesis `index`, with the rows `logits` of its output."""
        tensors = {"generation_logits": from_rows(logits)} if logits else {}
        if index == 0 and self.context_logits is not None:
            tensors["context_logits"] = from_rows(self.context_logits)
        return tensors

    def _perf(self, owner: Sequence | Group, blocks: int, now: float) -> Perf:
        """The final figures of `owner` (a sequence; in a search, this group), which used `blocks` blocks."""
        started, first = self.started, owner.first_token_at
        reused = min(self.cached_blocks, blocks)
        return Perf(
            arrival_ns=round(self.arrived * 1e9),
            first_scheduled_ns=round((now if started is None else started) * 1e9),
            first_token_ns=round((now if first is None else first) * 1e9),
            last_token_ns=round(now * 1e9),
            blocks_total=blocks,
            blocks_reused=reused,
            blocks_new=blocks - reused,
            draft_tokens=owner.draft_tokens if isinstance(owner, Sequence) else 0,
            accepted_tokens=owner.accepted_tokens if isinstance(owner, Sequence) else 0,
        )

    def _by_sequence(self, finish: FinishReason | None, last: int) -> bool:
        """Whether a stop sequence, rather than a stop token, ended an output whose last token is `last`."""
        return finish is FinishReason.STOP and last not in self.request.sampling.stop_token_ids

    def timing(self, now: float) -> Timing:
        started = now if self.started is None else self.started
        return Timing(queue_s=started - self.arrived, first_token_s=now - self.arrived)

    def _sequence(self, index: int) -> Sequence:
        request = self.request
        sent = bool(request.begun and request.begun[index].token_ids)  # the client has the prompt's fields
        reads_prompt = not sent and (index == 0 or bool(request.begun))
        return Sequence(
            request_id=request.id,
            index=index,
            prompt_len=len(request.token_ids),
            token_ids=list(request.token_ids),
            sampling=request.sampling,
            seed=self.seed,
            num_logprobs=request.logprobs,
            num_prompt_logprobs=request.prompt_logprobs if reads_prompt else None,
            order=(-request.priority, self.arrival, index),
            bias=self.bias,
            prompt_rows=self.prompt_rows,
            client_draft=self.client_draft,
            proposer=None if self.new_proposer is None else self.new_proposer(),
            wants_logits=request.generation_logits,
            context_logits=[] if request.context_logits and index == 0 and reads_prompt else None,
            salt=request.salt,
            adapter=request.adapter,
            processors=self.processors,
        )


def members_of(groups: abc.Mapping[str, Group], sequence: Sequence) -> list[Sequence]:
    """The sequences that each get a token from the last row of `sequence`.

    At the end of a prompt, these are all sequences of the request, newly made.
    """
    group = groups[sequence.request_id]
    if group.forked or group.request.n == 1 or group.request.beam is not None:
        return [sequence]
    return [sequence, *group.siblings()]
