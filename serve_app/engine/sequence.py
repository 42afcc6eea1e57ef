"""All state of one sequence, and the piece of it that one step computes. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from serve_app.types import PositionLogprobs, SamplingParams

if TYPE_CHECKING:
    import torch

    from serve_app.engine.model.prompt_tuning import Table
    from serve_app.engine.sampling.constraint import Constraint
    from serve_app.engine.sampling.processors import LogitsProcessor
    from serve_app.engine.sampling.speculative import Guess, Proposer


class Status(Enum):
    HELD = auto()  # until its grammar is compiled: in no queue
    WAITING = auto()  # no blocks, or preempted: to be computed (again) from the start
    RUNNING = auto()  # holds blocks and may be scheduled
    FINISHED = auto()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """One line of tokens: the prompt of its request and what was generated after it.

    `num_computed` tokens have their keys and values in the cache. A sequence is
    *decoding* when all its tokens are computed but the one sampled last and those
    that its grammar forced after it.
    """

    request_id: str
    index: int  # 0 .. n-1 within its request
    prompt_len: int
    token_ids: list[int]  # prompt, then output
    sampling: SamplingParams
    seed: int  # never None: the engine drew one if the client did not
    num_logprobs: int | None = None  # None: off
    num_prompt_logprobs: int | None = None
    status: Status = Status.WAITING
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    order: tuple[int, int, int] = (0, 0, 0)  # (-priority, arrival, index): smaller runs earlier
    processors: tuple[LogitsProcessor, ...] = ()
    constraint: Constraint | None = None  # where it stands in its grammar
    num_forced: int = 0  # tokens at the end that followed without sampling
    bias: torch.Tensor | None = None  # [V] float32, added to every row of logits
    table: Table | None = None  # of its prompt's virtual tokens
    guess: Guess | None = None  # at its first output tokens
    proposer: Proposer | None = None  # of drafts, where the guess has no more to say
    draft_tokens: int = 0  # verified so far
    accepted_tokens: int = 0  # of those
    wants_logits: bool = False  # of every output token
    context_logits: list[bytes] | None = None  # a row for each prompt token computed; None: not wanted
    first_token_at: float | None = None  # clock, seconds
    salt: str = ""  # of the prefix cache
    adapter: str | None = None  # key of one that is loaded
    block_keys: list[bytes] = field(default_factory=list)  # prefix keys of the leading full blocks
    num_indexed: int = 0  # leading blocks offered to the prefix index
    last_token_at: float | None = None  # clock, seconds; kept when step times are wanted
    gang: Gang | None = None  # of a beam
    output_logprobs: list[PositionLogprobs] = field(default_factory=list)  # of a beam, told at its end
    output_logits: list[bytes] = field(default_factory=list)  # the same

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def decoding(self) -> bool:
        return self.num_computed >= len(self.token_ids) - 1 - self.num_forced

    @property
    def wanted_from(self) -> int | None:
        """The first prompt position whose logits are wanted and have not been computed; None: none are."""
        wanted = []
        if self.num_prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len - 1:
            wanted.append(len(self.prompt_logprobs))  # a row tells of the token after it
        if self.context_logits is not None and len(self.context_logits) < self.prompt_len:
            wanted.append(len(self.context_logits))
        return min(wanted, default=None)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.prompt_len :]

    def output_ends_with(self, tail: tuple[int, ...]) -> bool:
        """Whether the last tokens of the output are these."""
        start = len(self.token_ids) - len(tail)
        return start >= self.prompt_len and tuple(self.token_ids[start:]) == tail


@dataclass(slots=True, eq=False)
class Gang:
    """Sequences that move in lockstep: each step computes all of them or none.

    They enter the batch together and give way together. Until the prompt is
    computed there is one member; the places of the others are kept for them.
    """

    places: int  # in the batch
    members: list[Sequence]  # in order; at most `places`


@dataclass(slots=True, eq=False)
class Chunk:
    """The tokens `start .. start+length-1` of one sequence, computed in one step.

    `first_logit` .. `start+length-1` are the positions whose logits are wanted:
    the last one to sample from, all of them for prompt log-probabilities, none
    (`first_logit == start+length`) for a prefill chunk that ends inside the prompt.
    The last of the tokens may be a draft, which the sequence itself does not have.
    """

    sequence: Sequence
    start: int
    length: int
    first_logit: int
    draft: tuple[int, ...] = ()
    proposer: Proposer | None = None  # of the draft

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def own_end(self) -> int:
        """Where the sequence's own tokens end, and the draft begins."""
        return self.start + self.length - len(self.draft)

    @property
    def num_logits(self) -> int:
        return self.end - self.first_logit

    @property
    def samples(self) -> bool:
        """Whether this chunk reaches the end of the sequence, so that a token follows."""
        return self.own_end == self.sequence.num_tokens
