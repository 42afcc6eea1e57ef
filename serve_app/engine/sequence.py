"""All state of one sequence, and the part of it that one step computes. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from serve_app.types import PositionLogprobs, SamplingParams

if TYPE_CHECKING:
    import torch

    from serve_app.engine.grammar.constraint import Constraint
    from serve_app.engine.request.client_draft import ClientDraft
    from serve_app.engine.request.processors import LogitsProcessor
    from serve_app.engine.request.prompt_rows import PromptRows


class Status(Enum):
    HELD = auto()  # in no queue until the grammar of the sequence is compiled
    WAITING = auto()  # holds no blocks: new, or preempted and to be computed again from the start
    RUNNING = auto()  # holds blocks and may be scheduled
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class Forecast:
    """The chances that a sequence's next draft tokens are right, each if all tokens before it are right."""

    first: float
    following: float
    most: int  # tokens


class Proposer(Protocol):
    """Proposes drafts of one sequence, and learns from their outcome."""

    def forecast(self, token_ids: list[int]) -> Forecast | None:
        """The chances that the next proposals are right; None if proposals are always made."""
        ...

    def propose(self, token_ids: list[int], most: int) -> tuple[int, ...]:
        """At most `most` tokens of the vocabulary that may come after `token_ids` (prompt and output)."""
        ...

    def learn(self, proposed: int, accepted: int) -> None:
        """Note that `accepted` of the `proposed` tokens were right."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """The prompt of a request and the output generated after it, as one list of tokens.

    The KV cache holds the first `num_computed` tokens. A sequence is *decoding* if every token is computed
    except the last sampled one and those that a grammar forced after it.
    """

    request_id: str
    index: int  # 0 .. n-1 within the request
    prompt_len: int
    token_ids: list[int]  # prompt, then output
    sampling: SamplingParams
    seed: int  # never None: the engine draws one where the client gave none
    num_logprobs: int | None = None  # alternatives for each output token; None: no log-probabilities
    num_prompt_logprobs: int | None = None  # the same for each prompt token
    status: Status = Status.WAITING
    num_pending: int = 0  # tokens after `token_ids` that a step has chosen and the host does not know yet
    ends_pending: bool = False  # with the pending token, whichever it is
    in_flight: bool = False  # in a step that runs in one of several stages
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    state: int | None = None  # the slot of the states after `num_computed` tokens; None: the model has none
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    order: tuple[int, int, int] = (0, 0, 0)  # (-priority, arrival, index): smaller runs earlier
    processors: tuple[LogitsProcessor, ...] = ()
    constraint: Constraint | None = None  # the state of the sequence in its grammar
    num_forced: int = 0  # tokens at the end that a grammar forced, so that nothing was sampled
    bias: torch.Tensor | None = None  # [V] float32, added to every row of logits
    prompt_rows: PromptRows | None = None  # embeddings of the prompt's virtual tokens
    client_draft: ClientDraft | None = None  # of the first output tokens
    proposer: Proposer | None = None  # of drafts, once the client's own draft is used up
    draft_tokens: int = 0  # verified so far
    accepted_tokens: int = 0  # of the verified draft tokens
    wants_logits: bool = False  # of every output token
    context_logits: list[bytes] | None = None  # a row for each prompt token computed; None: not wanted
    first_token_at: float | None = None  # clock, seconds
    salt: str = ""  # the prefix cache is shared only between sequences of equal salt
    adapter: str | None = None  # key of a loaded adapter
    block_keys: list[bytes] = field(default_factory=list)  # prefix keys of the leading full blocks
    num_indexed: int = 0  # leading blocks offered to the prefix index
    branches: set[int] = field(default_factory=set)  # leading blocks after which another prompt differs
    last_kept: bytes | None = None  # prefix key of the latest states that others may find
    last_token_at: float | None = None  # clock, seconds; kept only when the client wants step times
    beam_set: BeamSet | None = None  # the beams of its request, when it is one of them
    output_logprobs: list[PositionLogprobs] = field(default_factory=list)  # of a beam, returned at its end
    output_logits: list[bytes] = field(default_factory=list)  # of a beam, returned at its end

    @property
    def num_tokens(self) -> int:
        """Pending tokens count, too."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_output(self) -> int:
        """The tokens whose values are known."""
        return len(self.token_ids) - self.prompt_len

    @property
    def is_taken(self) -> bool:
        """Whether no other step may have it before the one that is not committed yet."""
        return self.ends_pending or self.in_flight

    @property
    def decoding(self) -> bool:
        return self.num_computed >= self.num_tokens - 1 - self.num_forced

    @property
    def wanted_from(self) -> int | None:
        """The first prompt position whose logits are wanted but not yet computed; None if there is none."""
        if self.num_prompt_logprobs is None and self.context_logits is None:
            return None  # as for nearly every sequence, several times a step
        wanted = []
        if self.num_prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len - 1:
            wanted.append(len(self.prompt_logprobs))  # a row of logits is about the token after it
        if self.context_logits is not None and len(self.context_logits) < self.prompt_len:
            wanted.append(len(self.context_logits))
        return min(wanted, default=None)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    @property
    def drafted_ids(self) -> tuple[int, ...]:
        """The next tokens in the client's draft; none once the output differs from the draft."""
        draft = self.client_draft
        if draft is None:
            return ()
        done = self.num_output
        if done >= len(draft.token_ids) or tuple(self.output_ids) != draft.token_ids[:done]:
            return ()
        return draft.token_ids[done:]

    def output_ends_with(self, tail: tuple[int, ...]) -> bool:
        """Whether the output ends with the tokens `tail`."""
        start = len(self.token_ids) - len(tail)
        return start >= self.prompt_len and tuple(self.token_ids[start:]) == tail

    @property
    def takes_forced(self) -> bool:
        """Whether tokens that the grammar forces are appended without being sampled.

        Forced tokens are sampled if every token needs its own distribution: for beams, log-probabilities,
        logits, processors and masks besides the grammar's.
        """
        sampling = self.sampling
        told_by_step = self.num_logprobs is not None or self.wants_logits or bool(self.processors)
        masks = bool(sampling.bad_words or sampling.allowed_token_ids or sampling.no_repeat_ngram)
        return self.beam_set is None and not told_by_step and not masks

    def forced_tokens(self) -> Iterator[int]:
        """The tokens that the grammar forces after the current output."""
        if self.constraint is not None and self.takes_forced:
            yield from self.constraint.forced(self.output_ids)


@dataclass(slots=True, eq=False)
class BeamSet:
    """The beams of one request, which move in lockstep: each step computes all of them or none.

    Beams enter the batch together, and are preempted together. Until the prompt is computed there is one
    beam; the batch keeps the places of the others.
    """

    places: int  # in the batch
    members: list[Sequence]  # in order; at most `places`


@dataclass(slots=True, eq=False)
class Chunk:
    """The tokens `start .. start+length-1` of one sequence, which one step computes.

    `first_logit` .. `start+length-1` are the positions whose logits are wanted: only the
    last position to sample a token, all positions for prompt log-probabilities, and none (`first_logit ==
    start+length`) for a prefill chunk that ends inside the prompt. The last tokens may be a draft, which is
    not part of the sequence.
    """

    sequence: Sequence
    start: int
    length: int
    first_logit: int
    draft: tuple[int, ...] = ()
    proposer: Proposer | None = None  # of the draft; None: the client, or there is no draft
    source: int | None = None  # the slot of the states before `start`; None: of a first token
    stops: tuple[tuple[int, int], ...] = ()  # positions and the slots for the states there, in order

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def own_end(self) -> int:
        """The position where the sequence's own tokens end and the draft begins."""
        return self.start + self.length - len(self.draft)

    @property
    def num_logits(self) -> int:
        return self.end - self.first_logit

    @property
    def samples(self) -> bool:
        """Whether this chunk reaches the end of the sequence, so that a token is sampled."""
        return self.own_end == self.sequence.num_tokens
