"""How often each address sent a key that does not exist, in a bounded memory.

A key has 256 random bits, so guesses are hopeless however many there are. The count keeps loops with a wrong
key from filling logs, and tells operators. It never stands between a good key and its answer: behind a proxy
all clients may have one address, and a stranger could otherwise shut everybody out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger(__name__)

MOST: Final = 100  # bad keys of one address in a window that are each answered with 401
WINDOW_S: Final = 60.0
MAX_ADDRESSES: Final = 1_024  # remembered; the one that was quiet for longest is forgotten first


@dataclass(slots=True)
class _Window:
    began: float
    count: int = 0


class BadKeys:
    """A count for each address, in windows of a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds and never goes back."""
        self.total = 0
        self._clock = clock
        self._windows: OrderedDict[str | None, _Window] = OrderedDict()

    def __len__(self) -> int:
        """Addresses that are remembered."""
        return len(self._windows)

    def add(self, peer: str | None) -> float | None:
        """Count one more of `peer`. Seconds until its window ends where there were too many, else None."""
        self.total += 1
        now = self._clock()
        window = self._windows.pop(peer, None)
        if window is None or now - window.began >= WINDOW_S:
            window = _Window(now)
        self._windows[peer] = window  # at the end: the newest
        if len(self._windows) > MAX_ADDRESSES:
            self._windows.popitem(last=False)
        window.count += 1
        if window.count <= MOST:
            return None
        if window.count == MOST + 1:
            logger.warning("more than %d invalid API keys in a minute from %s", MOST, peer or "unknown")
        return window.began + WINDOW_S - now
