"""How a step's prompt tokens are divided among prompts. Works on integers only, without a cache or a queue.

Prompts get tokens in order. A prompt that fits into the rest of the budget is computed whole. A longer one
continues in later steps: now it gets at least half of the rest of the budget. Much shorter prompts of the
same priority that come after it may get the other half. So a short prompt does not wait for the whole of a
long one. And a prompt takes at most twice as many steps as it would if no prompt could overtake it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A prompt may overtake another when it is shorter by at least this factor.
OVERTAKES: Final = 2
# A prompt that overtakes gets no smaller piece than this, in tokens, unless that is all it wants.
LEAST_PIECE: Final = 16


@dataclass(slots=True, eq=False)
class Share:
    """What one prompt gets in this step: its number of tokens."""

    priority: int
    wanted: int
    tokens: int


class Shares:
    """Divides `budget` tokens among prompts, which are added one after the other."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self._unfinished: list[Share] = []  # prompts that go on after this step, the longest first

    def closed(self, priority: int) -> bool:
        """Whether no further prompt of this priority, or of a lower one, can get tokens."""
        if not self._unfinished:
            return self.left == 0
        return self.left < LEAST_PIECE or priority < self._unfinished[0].priority

    def admits(self, wanted: int) -> bool:
        """Whether a prompt of this length gets tokens: if it is first, or short enough to overtake."""
        if not self._unfinished:
            return True
        fits = wanted <= self.left or self.left >= 2 * LEAST_PIECE
        return fits and wanted * OVERTAKES <= self._unfinished[-1].wanted

    def ask(self, priority: int, wanted: int) -> Share:
        """The share of the next prompt; `settle` may still enlarge it."""
        share = Share(priority, wanted, wanted)
        if wanted > self.left:
            share.tokens = -(-self.left // 2)
            self._unfinished.append(share)
        self.left -= share.tokens
        return share

    def settle(self) -> None:
        """Give the unused rest of the budget to the first prompts that can use more."""
        for share in self._unfinished:
            more = min(self.left, share.wanted - share.tokens)
            share.tokens += more
            self.left -= more
