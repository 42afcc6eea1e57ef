"""A request inside the engine: its sequences, its search, its first-token times."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from serve_app.engine.finish import EndRule
from serve_app.engine.model.prompt_tuning import Table
from serve_app.engine.request.tensors import from_rows, to_torch
from serve_app.engine.sampling.beam import BeamSearch
from serve_app.engine.sampling.processors import LogitsProcessor
from serve_app.engine.sampling.sampler import Sampled
from serve_app.engine.sampling.speculative import Guess, Proposer
from serve_app.engine.sequence import Gang, Sequence
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


@dataclass(slots=True, eq=False)
class Group:
    """The sequences of one request: the `n` asked for, or the beams of its search.

    Until the prompt is computed there is one, the leader (index 0); the others
    are forked from it with their first token. `open` are the indices whose end
    has not been reported, forked or not. Beams are numbered as they come up,
    their `n` hypotheses only at the end.
    """

    request: EngineRequest
    arrival: int  # serial number
    arrived: float  # clock, seconds
    seed: int
    processors: tuple[LogitsProcessor, ...] = ()
    bias: torch.Tensor | None = None
    table: Table | None = None
    guess: Guess | None = None
    new_proposer: Callable[[], Proposer] | None = None
    open: set[int] = field(default_factory=set)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    forked: bool = False
    started: float | None = None
    cached_tokens: int = 0
    gang: Gang | None = None  # of the beams
    search: BeamSearch | None = None  # once the prompt of a beam request is computed
    searched: int = 0  # tokens computed for its beams
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()  # kept here for a search
    context_logits: list[bytes] | None = None  # the same
    first_token_at: float | None = None  # of a search
    cached_blocks: int = 0
    last_token_at: float | None = None  # of a search, as in Sequence
    steps: list[StepTiming] = field(default_factory=list)  # of a search, when wanted: its beams share them
    _num_beams: int = 1  # ever made

    @classmethod
    def of(
        cls,
        request: EngineRequest,
        arrival: int,
        arrived: float,
        processors: tuple[LogitsProcessor, ...] = (),
        new_proposer: Callable[[], Proposer] | None = None,
    ) -> Group:
        """A group with its leader; draws the seed that the client left open."""
        seed = request.sampling.seed
        group = cls(request, arrival, arrived, secrets.randbits(64) if seed is None else seed, processors)
        group.open = set(range(request.n))
        group.bias = None if request.bias is None else to_torch(request.bias)
        group.table = None if request.prompt_table is None else Table.of(request.prompt_table)
        group.guess = None if request.draft is None else Guess.of(request.draft)
        group.new_proposer = None if request.beam is not None else new_proposer
        leader = group.sequences[0] = group._sequence(0)
        if request.beam is not None:
            group.gang = leader.gang = Gang(request.beam.width, [leader])
        return group

    @property
    def leader(self) -> Sequence:
        return self.sequences[0]

    def siblings(self) -> list[Sequence]:
        """The sequences to fork from the leader, whose prompt has just been computed."""
        made = [self._sequence(index) for index in range(1, self.request.n)]
        if self.leader.constraint is not None:
            for sequence in made:
                sequence.constraint = self.leader.constraint.fork()
        return made

    def new_beam(self, parent: Sequence) -> Sequence:
        """One more beam, with the tokens of its parent; to be forked by the scheduler."""
        beam = self._sequence(self._num_beams)
        self._num_beams += 1
        beam.token_ids = list(parent.token_ids)
        beam.output_logprobs = list(parent.output_logprobs)
        beam.output_logits = list(parent.output_logits)
        beam.gang = self.gang
        beam.constraint = None if parent.constraint is None else parent.constraint.fork()
        return beam

    def begin_search(self, ends: EndRule, window: int) -> BeamSearch:
        """The search, whose first beam is the leader; `window` is the length of a sequence."""
        request, leader = self.request, self.leader
        sampling, room = request.sampling, window - leader.prompt_len
        if request.beam is None:
            raise ValueError("a request without a beam has no search")

        def end(line: Sequence, token: int) -> FinishReason | None:
            return ends.reason(line, token, room)

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
        sequence: Sequence,
        count: int,
        sampled: Seq[Sampled],
        logits: list[bytes],
        leader: Sequence,
        finish: FinishReason | None,
        now: float,
        steps: tuple[StepTiming, ...],
    ) -> EngineOutput:
        """The last `count` tokens, those `sampled` and others forced after them.

        With the first come what is known of the prompt, which the leader has computed.
        """
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

    def note_search(self, count: int, now: float) -> None:
        """Its beams took `count` tokens."""
        self.searched += count
        self.first_token_at = now if self.first_token_at is None else self.first_token_at

    def tell_progress(self, computed: int) -> list[EngineOutput]:
        """The work so far, of the prompt `computed` tokens, where that is wanted and no token tells it."""
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
        """An end without a token."""
        return EngineOutput(
            request_id=self.request.id,
            index=index,
            finish=finish,
            error=error,
            cached_tokens=self.cached_tokens,
        )

    def tell_hypotheses(self, now: float) -> list[EngineOutput]:
        """The best hypotheses of a search that is over, which end their indices."""
        request = self.request
        found = self.search.hypotheses()[: request.n] if self.search is not None else []
        self.open.difference_update(range(len(found)))
        blocks = max((len(line.block_table) for line in self.sequences.values()), default=0)
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
        """Those of a hypothesis."""
        tensors = {"generation_logits": from_rows(logits)} if logits else {}
        if index == 0 and self.context_logits is not None:
            tensors["context_logits"] = from_rows(self.context_logits)
        return tensors

    def _perf(self, line: Sequence | Group, blocks: int, now: float) -> Perf:
        """Of a sequence that ends now with so many blocks, or of a search."""
        started, first = self.started, line.first_token_at
        reused = min(self.cached_blocks, blocks)
        return Perf(
            arrival_ns=round(self.arrived * 1e9),
            first_scheduled_ns=round((now if started is None else started) * 1e9),
            first_token_ns=round((now if first is None else first) * 1e9),
            last_token_ns=round(now * 1e9),
            blocks_total=blocks,
            blocks_reused=reused,
            blocks_new=blocks - reused,
            draft_tokens=line.draft_tokens if isinstance(line, Sequence) else 0,
            accepted_tokens=line.accepted_tokens if isinstance(line, Sequence) else 0,
        )

    def _by_sequence(self, finish: FinishReason | None, last: int) -> bool:
        """Whether it was a stop sequence that ended an output with this last token."""
        return finish is FinishReason.STOP and last not in self.request.sampling.stop_token_ids

    def timing(self, now: float) -> Timing:
        started = now if self.started is None else self.started
        return Timing(queue_s=started - self.arrived, first_token_s=now - self.arrived)

    def _sequence(self, index: int) -> Sequence:
        request = self.request
        return Sequence(
            request_id=request.id,
            index=index,
            prompt_len=len(request.token_ids),
            token_ids=list(request.token_ids),
            sampling=request.sampling,
            seed=self.seed,
            num_logprobs=request.logprobs,
            num_prompt_logprobs=request.prompt_logprobs if index == 0 else None,
            order=(-request.priority, self.arrival, index),
            bias=self.bias,
            table=self.table,
            guess=self.guess,
            proposer=None if self.new_proposer is None else self.new_proposer(),
            wants_logits=request.generation_logits,
            context_logits=[] if request.context_logits and index == 0 and not self.forked else None,
            salt=request.salt,
            adapter=request.adapter,
            processors=self.processors,
        )


def members_of(groups: Mapping[str, Group], sequence: Sequence) -> list[Sequence]:
    """The sequences that take a token where `sequence` is: all of a request at the end of its prompt."""
    group = groups[sequence.request_id]
    if group.forked or group.request.n == 1 or group.request.beam is not None:
        return [sequence]
    return [sequence, *group.siblings()]
