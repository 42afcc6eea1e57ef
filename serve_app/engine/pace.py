"""How many tokens of prompts a step takes, so that the sequences that decode in it are not held for long.

Made of the engine's own measurements: what a step of decodes takes, and what each prompt token adds to it.
Before there are any, and where nothing decodes, the number is fixed. Knows no clock: it is told seconds.
What a step computes does not depend on how prompts are cut (docs/decisions/engine-batch-invariance.md), so
these measurements decide when tokens come, and not which.
"""

from __future__ import annotations

from typing import Final

# A step takes prompt tokens for at most this many times what its decodes take alone ...
HELD: Final = 1.1
# ... or for what a single decode takes, and this many times that, divided by the decodes. The time of a small
# step goes into reading the weights, and prompts in small pieces would pay for it again and again. So the
# fewer sequences decode, the longer they may wait.
FEW: Final = 6.0
# Prompt tokens that a step takes at least, and the number of rows of which its size is a multiple.
LEAST: Final = 16
# A step with fewer prompt tokens tells too little of what one costs.
TELLING: Final = 16

# Prompt tokens of a step on a CPU in which nothing decodes: more make its products no faster, and the first
# prompts of many would get their first tokens later.
CPU_PIECE: Final = 512

# Measurements are smoothed, and follow a faster step sooner than a slower one: other work on the
# machine makes steps slower only.
FASTER: Final = 0.5
SLOWER: Final = 0.1
OUTLIER: Final = 3.0  # times the present figure; a slower step counts as one of this size


class Pace:
    """The prompt tokens of each step of one engine."""

    def __init__(self, alone: int) -> None:
        """`alone`: the prompt tokens of a step in which nothing decodes; no step has more."""
        self._alone = alone
        self._decode_s: dict[
            int, float
        ] = {}  # of a step without prompts, by the bits of its number of decodes
        self._token_s: float | None = None  # that a prompt token adds to a step
        self._mixed = False  # whether `_token_s` was measured beside decodes

    @classmethod
    def on(cls, device_type: str, max_step_tokens: int) -> Pace:
        """The pace of an engine on a device of this type, whose steps have at most `max_step_tokens`."""
        return cls(min(max_step_tokens, CPU_PIECE) if device_type == "cpu" else max_step_tokens)

    def prompt_tokens(self, decodes: int) -> int:
        """The most prompt tokens of a step that also computes `decodes` tokens of decoding sequences."""
        if not decodes or not self._decode_s or self._token_s is None:
            return self._alone
        step = self._of_decodes(decodes)
        room = max(HELD * step, (1.0 + FEW / decodes) * self._of_decodes(1))
        rows = decodes + int(room / self._token_s)
        return max(min(LEAST, self._alone), min(self._alone, rows // LEAST * LEAST - decodes))

    def observe(self, decodes: int, prompt_tokens: int, seconds: float) -> None:
        """Note what a step took that computed so many tokens of each kind."""
        if seconds <= 0.0:
            return
        if not prompt_tokens:
            size = decodes.bit_length()
            self._decode_s[size] = _smoothed(self._decode_s.get(size), seconds)
        elif prompt_tokens >= TELLING and not decodes and not self._mixed:
            self._token_s = _smoothed(self._token_s, seconds / prompt_tokens)
        elif prompt_tokens >= TELLING and decodes and self._decode_s:
            # Never nothing: a step that is no slower than one without prompts still has rows to compute.
            added = max(seconds - self._of_decodes(decodes), 0.1 * seconds)
            self._token_s = _smoothed(self._token_s, added / prompt_tokens)
            self._mixed = True

    def _of_decodes(self, decodes: int) -> float:
        """Seconds of a step of so many decodes: no more than what larger steps took."""
        size = decodes.bit_length()
        larger = [seconds for known, seconds in self._decode_s.items() if known >= size]
        return min(larger) if larger else self._decode_s[max(self._decode_s)]


def _smoothed(known: float | None, new: float) -> float:
    if known is None:
        return new
    new = min(new, OUTLIER * known)
    return known + (FASTER if new < known else SLOWER) * (new - known)
