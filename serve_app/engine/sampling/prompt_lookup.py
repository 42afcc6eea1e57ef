"""Prompt lookup: proposes the tokens that followed an earlier occurrence of the sequence's last tokens.

It works well for answers that quote their prompt or repeat themselves. If the number of proposed tokens is
fixed, a failed proposal makes the following proposals shorter and rarer. `ForecastLookup` estimates the
chances that its proposals are right, and `DraftGain` decides which proposals are worth their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from serve_app.engine.sequence import Forecast
from serve_app.types import EngineRequest

LONGEST: Final = 3  # tokens that must match; a longer match is looked for first
SHORTEST: Final = 2
REACH: Final = 8_192  # tokens at the end of a prompt that are looked through
MOST_SKIPPED: Final = 64  # steps without a proposal, after many failures
MOST_FORECAST: Final = 31  # tokens of a proposal with a forecast
OWN_WEIGHT: Final = 0.15  # of a guess in the chances of its sequence
SHARED_WEIGHT: Final = 0.01  # of a guess in the chances with which the next sequences begin


class PromptLookup:
    """The proposals for one sequence, at most `most` tokens each.

    Reads each token once: an index keeps the places of all short runs.
    """

    def __init__(self, most: int, *, vocab_size: int, max_tokens: int) -> None:
        """`max_tokens` limits prompt and output together."""
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
        """At most `most` tokens that followed an earlier occurrence of the last tokens of `token_ids`."""
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

    def forecast(self, token_ids: list[int]) -> None:
        """None: proposals are always made."""

    def learn(self, proposed: int, accepted: int) -> None:
        """Propose more after a right proposal, less after a wrong one, and more rarely if all are wrong."""
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


@dataclass(slots=True)
class Chances:
    """How often recent guesses were right."""

    first: float = 0.0  # of guesses just found
    following: float = 0.0  # of guesses right after one that was right

    def learn(self, right: bool, follows: bool, weight: float) -> None:
        if follows:
            self.following += weight * (right - self.following)
        else:
            self.first += weight * (right - self.first)


class ForecastLookup:
    """The proposals for one sequence, and the chances that they are right.

    It guesses every token before the token is known, whether or not the guess is computed as a draft. So
    measuring the chances costs no rows, and text that begins to repeat itself is noticed within a few tokens.
    """

    def __init__(self, shared: Chances, *, vocab_size: int, max_tokens: int) -> None:
        """`max_tokens` limits prompt and output together."""
        self._shared = shared
        self._own = replace(shared)
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._read = 0
        self._place = 0  # the place of the guessed next token; 0: there is no guess
        self._follows = False  # the guess before was right
        self._places: dict[tuple[int, int], int] = {}  # a pair of tokens -> the place after it, the last time

    def forecast(self, token_ids: list[int]) -> Forecast:
        """The chances that guesses for the tokens after `token_ids` are right; empty if there is no guess."""
        self._follow(token_ids)
        most = min(MOST_FORECAST, self._max_tokens - len(token_ids) - 1)
        if not self._place or most <= 0 or token_ids[self._place] >= self._vocab_size:
            return Forecast(0.0, 0.0, 0)
        first = self._own.following if self._follows else self._own.first
        return Forecast(first, self._own.following, most)

    def propose(self, token_ids: list[int], most: int) -> tuple[int, ...]:
        """The first `most` tokens of the forecast."""
        found = token_ids[self._place : self._place + most] if self._place else []
        while found and len(found) < most:  # a text that repeats itself goes on to
            found += found[: most - len(found)]
        known = next((i for i, t in enumerate(found) if t >= self._vocab_size), len(found))
        return tuple(found[:known])

    def learn(self, proposed: int, accepted: int) -> None:
        """Does nothing: `forecast` itself compares guesses with the sequence."""

    def _follow(self, tokens: list[int]) -> None:
        """Compare the guesses with the new tokens, and guess the next token."""
        if len(tokens) < self._read:
            self._read, self._place = 0, 0
            self._places.clear()
        if self._read < 2:  # the prompt, and at first what was generated already
            start = max(0, len(tokens) - REACH)
            pairs = zip(tokens[start:-2], tokens[start + 1 : -1], strict=False)
            self._places.update(zip(pairs, range(start + 2, len(tokens)), strict=False))
            self._read = max(len(tokens) - 1, 0)
        for place in range(self._read, len(tokens)):
            token = tokens[place]
            right = False
            if self._place:
                right = tokens[self._place] == token
                self._own.learn(right, self._follows, OWN_WEIGHT)
                self._shared.learn(right, self._follows, SHARED_WEIGHT)
            if place:
                pair = tokens[place - 1], token
                found = self._places.get(pair, 0)
                self._places[pair] = place + 1
                self._place = self._place + 1 if right else found
            self._follows = right
        self._read = len(tokens)


@dataclass(frozen=True, slots=True)
class PromptLookupFactory:
    """Makes the proposers for the requests of one engine."""

    most: int | Literal["auto"]  # tokens of a proposal; 0: no proposals; auto: those that pay
    vocab_size: int
    window: int
    chances: Chances = field(default_factory=Chances)  # of all sequences

    @classmethod
    def of_engine(
        cls, most: int | Literal["auto"] | None, overlap: bool, vocab_size: int, window: int
    ) -> PromptLookupFactory:
        """Proposals of an engine. If `most` is None, proposes only drafts that are worth their cost, and none
        if steps `overlap`."""
        if most is None:
            most = 0 if overlap else "auto"
        return cls(most, vocab_size, window)

    def of(self, request: EngineRequest) -> Callable[[], PromptLookup | ForecastLookup] | None:
        """A function that makes the proposer of each sequence of a request; None: there are no proposals.

        Returns None for a request with a client's draft, since that request's statistics must be about the
        client's draft.
        """
        if not self.most or request.draft is not None:
            return None
        wanted = request.sampling.max_tokens
        room = self.window if wanted is None else min(self.window, len(request.token_ids) + wanted)
        limits = {"vocab_size": self.vocab_size, "max_tokens": room}
        if self.most == "auto":
            return partial(ForecastLookup, self.chances, **limits)
        return partial(PromptLookup, self.most, **limits)
