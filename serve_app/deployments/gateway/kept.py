"""What a gateway keeps of an answer: enough for another replica to go on with it.

Knows no replica and no channel. Four bytes a token, `MAX_KEPT` tokens a request at most.
"""

from __future__ import annotations

from array import array
from typing import Final

from serve_app.types import ChoiceSoFar, GenerateRequest, Resume, Timing, TokenDelta, Usage

MAX_KEPT: Final = 2**18  # tokens of all choices, 1 MB: an answer with more finishes where it is


class Kept:
    """The tokens of one request that its reader was given."""

    __slots__ = ("_choices", "_is_ranked", "_open", "_room", "_usage", "weights")

    def __init__(self, request: GenerateRequest) -> None:
        self.weights = ""  # `ModelInfo.weights` of the replica that made the tokens
        self._choices = [_Choice() for _ in range(request.n)]
        self._open = request.n
        self._room = MAX_KEPT
        self._usage = Usage()
        # Its choices are told together and only once they are compared: no part of them can go on.
        self._is_ranked = request.beam is not None or (request.best_of or 0) > request.n

    @property
    def is_empty(self) -> bool:
        """Whether nothing was delivered: the request can start over, and its client sees nothing of it."""
        return self._room == MAX_KEPT and self._open == len(self._choices)

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended."""
        return not self._open

    @property
    def can_go_on(self) -> bool:
        """Whether another replica can go on, or start over."""
        return self.is_empty or (self._room >= 0 and not self._is_ranked)

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices that were delivered."""
        return MAX_KEPT - self._room if self._room >= 0 else 0

    def note(self, delta: TokenDelta) -> None:
        """The reader is given `delta`."""
        self._usage = delta.usage
        ids = delta.token_ids
        if ids and self._room >= 0:
            self._room -= len(ids)
            if self._room >= 0:
                self._choices[delta.index].token_ids.extend(ids)
            else:
                self._drop()
        if delta.timing is not None:
            self._choices[delta.index].timing = delta.timing
        if delta.finish is not None and not self._choices[delta.index].is_finished:
            self._choices[delta.index].is_finished = True
            self._open -= 1

    def resume(self, age_s: float) -> Resume | None:
        """What a replica is told to go on; None: start over. `age_s`: since the request was first sent."""
        if self.is_empty:
            return None
        choices = tuple(
            ChoiceSoFar(token_ids=tuple(each.token_ids), finished=each.is_finished, timing=each.timing)
            for each in self._choices
        )
        return Resume(weights=self.weights, choices=choices, usage=self._usage, age_s=age_s)

    def _drop(self) -> None:
        self._room = -1
        for choice in self._choices:
            choice.token_ids = array("I")


class _Choice:
    __slots__ = ("is_finished", "timing", "token_ids")

    def __init__(self) -> None:
        self.token_ids = array("I")
        self.is_finished = False
        self.timing: Timing | None = None
