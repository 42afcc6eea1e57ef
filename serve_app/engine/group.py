"""A request inside the engine: its sequences, its deadline, its first-token times. No torch."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from serve_app.engine.sequence import Sequence
from serve_app.types import EngineRequest, Timing


@dataclass(slots=True, eq=False)
class Group:
    """The `n` sequences of one request.

    Until the prompt is computed there is one, the leader (index 0); the others
    are forked from it with their first token. `open` are the indices whose end
    has not been reported, forked or not.
    """

    request: EngineRequest
    arrival: int  # serial number
    arrived: float  # clock, seconds
    seed: int
    open: set[int] = field(default_factory=set)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    forked: bool = False
    started: float | None = None
    cached_tokens: int = 0

    @classmethod
    def of(cls, request: EngineRequest, arrival: int, arrived: float) -> Group:
        """A group with its leader; draws the seed that the client left open."""
        seed = request.sampling.seed
        group = cls(request, arrival, arrived, secrets.randbits(64) if seed is None else seed)
        group.open = set(range(request.n))
        group.sequences[0] = group._sequence(0)
        return group

    @property
    def leader(self) -> Sequence:
        return self.sequences[0]

    def siblings(self) -> list[Sequence]:
        """The sequences to fork from the leader, whose prompt has just been computed."""
        return [self._sequence(index) for index in range(1, self.request.n)]

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
            salt=request.salt,
        )
