"""Where the time of nested calls goes: every part gets its own time, without that of the parts inside it.

Functions are wrapped where their callers look them up, so what is measured is the code as it runs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class Stopwatch:
    """Seconds by part. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._clock = clock
        self._inner = [0.0]  # for each open part, the time of the parts inside it

    def reset(self) -> None:
        self.seconds.clear()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """The time of the block, less that of the parts in it."""
        began = self._clock()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = self._clock() - began
            self.seconds[name] += took - self._inner.pop()
            self._inner[-1] += took

    @contextmanager
    def wrapped(self, *places: tuple[Any, str, str]) -> Iterator[None]:
        """Each of (owner, attribute, part): calls of that attribute belong to that part."""
        with ExitStack() as stack:
            for owner, attribute, name in places:
                stack.enter_context(self._replaced(owner, attribute, name))
            yield

    @contextmanager
    def _replaced(self, owner: Any, attribute: str, name: str) -> Iterator[None]:
        original = getattr(owner, attribute)
        own = attribute in vars(owner)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return original(*args, **kwargs)

        setattr(owner, attribute, timed)
        try:
            yield
        finally:
            if own:
                setattr(owner, attribute, original)
            else:
                delattr(owner, attribute)
