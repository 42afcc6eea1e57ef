"""How often each address sent a key that does not exist, in a bounded memory.

A key has 256 random bits, so guesses are hopeless however many there are. The count keeps loops with a wrong
key from filling logs, and is shown to operators. It never blocks a good key: behind a proxy all clients may
have one address, so a stranger could lock out the others.

A new key that this gateway does not have yet counts as bad; when the key arrives, its count is undone.
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
MAX_ADDRESSES: Final = 1_024  # remembered; the one silent for longest is forgotten first
MAX_UNKNOWN: Final = 1_024  # keys that may turn out to be good; the oldest is forgotten first


@dataclass(slots=True)
class _Window:
    began: float
    count: int = 0


class BadKeys:
    """A count for each address, in one-minute windows."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds and never goes back."""
        self.total = 0
        self._clock = clock
        self._windows: OrderedDict[str | None, _Window] = OrderedDict()
        # By digest: the window where the key was counted last, and how often there.
        self._unknown: OrderedDict[bytes, tuple[_Window, int]] = OrderedDict()
        self._credit = 0  # taken back, but still in `total`, which never falls

    def __len__(self) -> int:
        """The number of addresses that are remembered."""
        return len(self._windows)

    def add(self, peer: str | None, digest: bytes) -> float | None:
        """Count a bad key with `digest` from `peer`.

        If there were too many, returns the seconds until the window of `peer` ends, otherwise None.
        """
        if self._credit:
            self._credit -= 1
        else:
            self.total += 1
        now = self._clock()
        window = self._windows.pop(peer, None)
        if window is None or now - window.began >= WINDOW_S:
            window = _Window(now)
        self._windows[peer] = window  # at the end, as the newest
        if len(self._windows) > MAX_ADDRESSES:
            self._windows.popitem(last=False)
        window.count += 1
        if window.count <= MOST:
            self._remember(digest, window)
            return None
        if window.count == MOST + 1:
            logger.warning("more than %d invalid API keys in a minute from %s", MOST, peer or "unknown")
        return window.began + WINDOW_S - now

    def forgive(self, digest: bytes) -> None:
        """The key with `digest` is good after all: take back the attempts that were counted for it."""
        if (found := self._unknown.pop(digest, None)) is not None:
            window, count = found
            window.count -= count
            self._credit += count

    def _remember(self, digest: bytes, window: _Window) -> None:
        before, count = self._unknown.get(digest, (window, 0))
        self._unknown[digest] = (window, count + 1 if before is window else 1)
        if len(self._unknown) > MAX_UNKNOWN:
            self._unknown.popitem(last=False)
