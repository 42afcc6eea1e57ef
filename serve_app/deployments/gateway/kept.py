"""The part of an answer that a gateway keeps, so that another replica can continue it.

Does not depend on replicas or channels. A token takes four bytes; at most `MAX_KEPT` are kept per request.
"""

from __future__ import annotations

from array import array
from typing import Final

from serve_app.errors import Unavailable, from_info
from serve_app.types import (
    ChoiceSoFar,
    FinishReason,
    GenerateRequest,
    Resume,
    Timing,
    TokenDelta,
    Usage,
)

MAX_KEPT: Final = 2**18  # tokens of all choices, 1 MB: an answer with more finishes where it is


class Kept:
    """The delivered tokens of one request."""

    __slots__ = ("_finished", "_ids", "_is_ranked", "_is_too_long", "_timings", "_usage", "weights")

    def __init__(self, request: GenerateRequest) -> None:
        self.weights = ""  # `ModelInfo.weights` of the replica that made the tokens
        self._ids = tuple(array("I") for _ in range(request.n))  # by choice
        self._finished: frozenset[int] = frozenset()  # choices that ended
        self._timings: dict[int, Timing] | None = None  # by choice, once there is one
        self._is_too_long = False
        self._usage = Usage()
        # Choices that are compared are delivered together: no part of them can be continued.
        self._is_ranked = request.beam is not None or (request.best_of or 0) > request.n

    @property
    def is_empty(self) -> bool:
        """Whether nothing was delivered, so that the request can start over without its client noticing."""
        return not (self._is_too_long or any(self._ids) or self._finished)

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return len(self._finished) == len(self._ids)

    @property
    def can_go_on(self) -> bool:
        """Whether another replica can continue the answer or start it over."""
        return self.is_empty or not (self._is_too_long or self._is_ranked)

    @property
    def num_tokens(self) -> int:
        """The number of tokens that were delivered, over all choices."""
        return sum(map(len, self._ids))

    def note(self, deltas: list[TokenDelta]) -> TokenDelta | None:
        """Record the delivered `deltas`, up to one that reports an engine's end; returns that delta, if any.

        Runs for each step of each stream.
        """
        choices = self._ids
        for delta in deltas:
            if (delta.finish is not None or delta.timing is not None) and not self._note_edge(delta):
                return delta
            for token_id in delta.token_ids:
                choices[delta.index].append(token_id)
            self._usage = delta.usage
        if self._usage.completion_tokens > MAX_KEPT and any(choices):
            self._drop()
        return None

    def _note_edge(self, delta: TokenDelta) -> bool:
        """Record that a choice began or ended. False: its engine ended."""
        if delta.finish is not None:
            if is_engines_end(delta):
                return False
            self._finished |= {delta.index}
        if delta.timing is not None:
            self._timings = {**(self._timings or {}), delta.index: delta.timing}
        return True

    def resume(self, age_s: float) -> Resume | None:
        """The `Resume` for another replica; None: start over. `age_s`: since the request was first sent."""
        if self.is_empty:
            return None
        timings = self._timings or {}
        choices = tuple(
            ChoiceSoFar(token_ids=tuple(ids), finished=index in self._finished, timing=timings.get(index))
            for index, ids in enumerate(self._ids)
        )
        return Resume(weights=self.weights, choices=choices, usage=self._usage, age_s=age_s)

    def _drop(self) -> None:
        self._is_too_long = True
        for ids in self._ids:
            del ids[:]


def is_engines_end(delta: TokenDelta) -> bool:
    """Whether the engine stopped while its process is still alive, so that another replica may continue."""
    if delta.finish is not FinishReason.ERROR or delta.error is None:
        return False
    return isinstance(from_info(delta.error), Unavailable)
