"""Prompt lookup: proposes the tokens that followed an earlier occurrence of the last ones.

It finds answers that quote their prompt or repeat themselves. Other answers pay little,
since a proposal that fails makes the next ones shorter and rarer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from serve_app.types import EngineRequest

LONGEST: Final = 3  # tokens that must match; a longer match is looked for first
SHORTEST: Final = 2
REACH: Final = 8_192  # tokens at the end of a prompt that are looked through
MOST_SKIPPED: Final = 64  # steps without a proposal, after many failures


class PromptLookup:
    """The proposals for one sequence, at most `most` tokens each.

    Reads each token once: the places of all short runs are kept in an index.
    """

    def __init__(self, most: int, *, vocab_size: int, max_tokens: int) -> None:
        """`max_tokens` is the most that prompt and output have together."""
        self._most = most
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._length = min(2, most)  # of the next proposal
        self._skip = 0  # steps to let pass
        self._failures = 0  # in a row
        self._read = 0
        # A run of tokens -> the place after it where it was last seen, and the one before that.
        self._places: dict[tuple[int, ...], tuple[int, int]] = {}

    def propose(self, token_ids: list[int], most: int) -> tuple[int, ...]:
        """At most `most` tokens that followed an earlier occurrence of the last ones of `token_ids`."""
        if self._skip:
            self._skip -= 1
            return ()
        tokens = token_ids
        self._index(tokens)
        most = min(most, self._length, self._max_tokens - len(tokens) - 1)
        for size in range(LONGEST, SHORTEST - 1, -1):
            last, before = self._places.get(tuple(tokens[-size:]), (0, 0))
            place = before if last == len(tokens) else last
            if most > 0 and place and len(tokens) >= size:
                found = tokens[place : place + most]
                while len(found) < most:  # a text that repeats itself goes on to
                    found += found[: most - len(found)]
                known = next((i for i, t in enumerate(found) if t >= self._vocab_size), len(found))
                return tuple(found[:known])
        return ()

    def learn(self, proposed: int, accepted: int) -> None:
        """Twice as long after a proposal that was right, half after one that was not; rarer if all fail."""
        if accepted == proposed:
            self._length = min(self._most, 2 * self._length)
        else:
            self._length = max(1, min(self._length, accepted + 1))
        self._failures = 0 if accepted else self._failures + 1
        self._skip = min(MOST_SKIPPED, 2**self._failures) if self._failures > 1 else 0

    def _index(self, tokens: list[int]) -> None:
        if len(tokens) < self._read:
            self._read = 0
            self._places.clear()
        for end in range(max(self._read, len(tokens) - REACH) + 1, len(tokens) + 1):
            for size in range(SHORTEST, min(LONGEST, end) + 1):
                run = tuple(tokens[end - size : end])
                self._places[run] = end, self._places.get(run, (0, 0))[0]
        self._read = len(tokens)


@dataclass(frozen=True, slots=True)
class PromptLookupFactory:
    """Makes the proposers for the requests of one engine."""

    most: int  # tokens of a proposal; 0: no proposals
    vocab_size: int
    window: int

    def of(self, request: EngineRequest) -> Callable[[], PromptLookup] | None:
        """A function that makes the proposer of each sequence of a request; None: there are no proposals."""
        if not self.most:
            return None
        wanted = request.sampling.max_tokens
        room = self.window if wanted is None else min(self.window, len(request.token_ids) + wanted)
        return partial(PromptLookup, self.most, vocab_size=self.vocab_size, max_tokens=room)
