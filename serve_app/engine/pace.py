"""Chooses how many prompt tokens a step takes, so that decoding sequences are not delayed for long.

Uses the engine's measurements: the time of a step of decodes, and the additional time of each prompt token.
The number of prompt tokens is fixed until there are measurements, and whenever nothing decodes. Reads no
clock: durations are passed in. What a step computes does not depend on how prompts are cut
(docs/decisions/engine-same-tokens.md), so these measurements affect when tokens are generated, but not which
tokens.
"""

from __future__ import annotations

import math
from typing import Final

# Prompt tokens add at most this many times what the decodes of a step take alone. If more sequences are about
# to decode, a step may already take as long as it will with all of them ...
HELD: Final = 1.1
# ... or `1 + FEW / n**2` times what a single decode takes, where `n` sequences decode. The time of a small
# step goes into reading the weights, and small pieces of prompts pay for it often. So few decodes wait
# longer.
FEW: Final = 8.0
# The fewest prompt tokens that a step takes, and the number of which a step's rows are a multiple.
LEAST: Final = 16
# A step with fewer prompt tokens than this shows the cost of one too inexactly.
TELLING: Final = 16

# If launching a step takes longer than computing it, a large piece of a prompt costs little more than a small
# one. So a step takes as many tokens as cost at most this many times what the fewest cost.
CHEAP: Final = 1.25
# Once in this many steps it takes fewer tokens, and once more tokens, to measure their cost again.
AGAIN: Final = 32

# Prompt tokens of a step on a CPU in which nothing decodes: more make its products no faster, and the first
# prompts of many would get their first tokens later.
CPU_PIECE: Final = 512

# Measurements are smoothed, with this weight for a new one, whether it is below or above the present figure.
# Else, if steps vary, decodes would seem too fast and prompts too slow, and prompts would be cut too small.
WEIGHT: Final = 0.25
OUTLIER: Final = 3.0  # times the present figure; a slower step counts as one of this size


class Pace:
    """The number of prompt tokens in each step of one engine."""

    def __init__(self, alone: int, *, launches: bool = False) -> None:
        """`alone`: how many prompt tokens a step takes if nothing decodes; no step takes more.

        `launches`: whether a step has a fixed cost besides that of its tokens, as on a GPU.
        """
        self._alone, self._launches = alone, launches
        # By the size of pieces: their prompt tokens, and the seconds that these added to decodes.
        self._added: dict[int, tuple[float, float]] = {}
        self._mixed_steps = 0
        self._decode_s: dict[int, float] = {}  # of a step without prompts, by the bits of its decodes
        self._most = 0  # decodes of these steps at most
        self.token_s: float | None = (
            None  # seconds that a prompt token adds to a step; None: not measured yet
        )
        self._mixed = False  # whether `token_s` was measured beside decodes

    @classmethod
    def on(cls, device_type: str, max_step_tokens: int) -> Pace:
        """The pace of an engine on a device of this type, whose steps have at most `max_step_tokens`."""
        if device_type == "cpu":
            return cls(min(max_step_tokens, CPU_PIECE))
        return cls(max_step_tokens, launches=True)

    def prompt_tokens(self, decodes: int, sequences: int = 0) -> int:
        """The most prompt tokens of a step that also computes `decodes` tokens of decoding sequences.

        `sequences`: how many sequences run or wait, at most as many as may run at once; 0: only the decoding
        ones.
        """
        if not decodes or not self._decode_s or self.token_s is None:
            return self._alone
        step = self._of_decodes(decodes)
        later = (1.0 + HELD) * self._of_decodes(max(decodes, sequences)) - step
        room = max(later, (1.0 + FEW / decodes**2) * self._of_decodes(1))
        rows = decodes + int(room / self.token_s)
        fitting = max(min(LEAST, self._alone), min(self._alone, rows // LEAST * LEAST) - decodes)
        return min(self._alone, self._cheap(fitting, room))

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Record the time of a step with these numbers of tokens."""
        if seconds <= 0.0:
            return
        self._mixed_steps += 1 if decodes and prompt_tokens else 0
        if not prompt_tokens:
            size = decodes.bit_length()
            self._decode_s[size] = smoothed(self._decode_s.get(size), seconds)
            self._most = max(self._most, decodes)
        elif prompt_tokens >= TELLING and not decodes and not self._mixed:
            self.token_s = smoothed(self.token_s, seconds / prompt_tokens)
        elif prompt_tokens >= TELLING and decodes and self._decode_s:
            # Never zero: a step that is no slower than one without prompts still has rows to compute.
            added = max(seconds - self._of_decodes(decodes), 0.1 * seconds)
            self.token_s = smoothed(self.token_s, added / prompt_tokens)
            self._mixed = True
            if self._launches:
                self._observe_added(prompt_tokens, added)

    def _observe_added(self, tokens: int, added: float) -> None:
        """Record the time that prompt tokens added to a step. Estimates are kept monotonic: more tokens never
        cost less than fewer tokens."""
        own = _bucket(tokens)
        before = self._added.get(own, (float(tokens), added))
        # The first figure may come from a step that compiled its kernels: a much lower one replaces it.
        found = added if OUTLIER * added < before[1] else smoothed(before[1], added)
        self._added[own] = smoothed(before[0], tokens), found
        for size, (count, known) in self._added.items():
            self._added[size] = count, min(known, found) if size < own else max(known, found)

    def _cheap(self, tokens: int, room: float) -> int:
        """The most prompt tokens that cost little more than `tokens` and are estimated to fit in `room`.

        Now and then the result is up to twice as large, to measure what that many tokens cost.
        """
        turn = self._mixed_steps % AGAIN
        own = max((size for size in self._added if size <= _bucket(tokens)), default=None)
        if own is None or turn == 0:
            return tokens
        seconds = self._added[own][1]
        limit = CHEAP * (seconds if seconds > CHEAP * room else room)
        count, seconds = float(tokens), min(seconds, limit)
        for _, (more, added) in sorted(each for each in self._added.items() if each[0] > own):
            if added > limit:
                between = (limit - seconds) / (added - seconds)
                most = max(tokens, int(count + between * (more - count)))
                return max(tokens, int(min(more, 2 * most))) if turn == AGAIN // 2 else most
            count, seconds = more, added
        return max(tokens, int(2 * count))

    def _of_decodes(self, decodes: int) -> float:
        """The estimated seconds of a step of `decodes` decodes, never more than those of a larger step.

        Beyond the largest step so far, each further decode is assumed to take as long as a prompt token.
        """
        size = decodes.bit_length()
        larger = [seconds for known, seconds in self._decode_s.items() if known >= size]
        if larger:
            return min(larger)
        return self._decode_s[max(self._decode_s)] + (decodes - self._most) * (self.token_s or 0.0)


def smoothed(known: float | None, new: float, *, weight: float = WEIGHT, outlier: float = OUTLIER) -> float:
    """A moving average: `known` moved towards `new` by `weight`; `new` is capped at `outlier` times `known`.

    The cap is there because an occasional measurement is far too high.
    """
    return new if known is None else known + weight * (min(new, outlier * known) - known)


def _bucket(tokens: int) -> int:
    """The number of a size bucket, for pieces of similar size; a fifth more tokens is the next bucket."""
    return int(4 * math.log2(tokens))
