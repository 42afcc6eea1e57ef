"""Threads that tokenise off the event loop, with bounds on their number and on the text that waits.

A running job cannot be stopped. Long jobs therefore run one after the other in a thread of their own, and
delay no short job. A job whose caller leaves while the job waits is never begun.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from serve_app import heap
from serve_app.errors import Overloaded
from serve_app.limits import MAX_TOKENISING_CHARS

T = TypeVar("T")

# Encoding takes from 0.2 to 1.5 ms per 1,000 characters on a CPU core; a hop to a thread about 0.1 ms.
INLINE_CHARS: Final = 2_000
LONG_CHARS: Final = 2**18  # 0.4 s at worst: shorter jobs never wait for a longer one
SHORT_THREADS: Final = 2
TRIM_CHARS: Final = 2**18  # between two trims: at worst 250 bytes per character are not given back
RETRY_AFTER_S: Final = 1.0


class Workers:
    """Runs jobs by their size: at once, in one of a few threads, or in the thread for long jobs."""

    def __init__(self) -> None:
        self._short = Lane("tokenizer", SHORT_THREADS)
        self._long = Lane("tokenizer-long", 1)

    async def run(self, num_chars: int, work: Callable[[], T]) -> T:
        """The result of `work` on `num_chars` characters. Raises Overloaded, or what `work` raises."""
        if num_chars <= INLINE_CHARS:
            return work()
        lane = self._short if num_chars <= LONG_CHARS else self._long
        return await lane.run(num_chars, work)


class Lane:
    """A pool of threads, and the number of characters of all its running and waiting jobs."""

    def __init__(self, name: str, threads: int, most_chars: int = MAX_TOKENISING_CHARS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most_chars = most_chars
        self._lock = threading.Lock()  # protects the two attributes below
        self._held = 0
        self._untrimmed = 0

    async def run(self, num_chars: int, work: Callable[[], T]) -> T:
        """As `Workers.run`. A waiting job is removed when its caller is cancelled."""
        with self._lock:
            if self._held + num_chars > self._most_chars:
                raise Overloaded(
                    "too many long texts wait to be tokenised; try again", retry_after_s=RETRY_AFTER_S
                )
            self._held += num_chars
        job = self._pool.submit(self._done, num_chars, work)
        job.add_done_callback(lambda _: self._release(num_chars))
        return await asyncio.wrap_future(job)

    def _done(self, num_chars: int, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            with self._lock:
                self._untrimmed += num_chars
                is_due = self._untrimmed >= TRIM_CHARS
                if is_due:
                    self._untrimmed = 0
            if is_due:
                heap.trim()  # otherwise each thread's heap stays as large as its largest job

    def _release(self, num_chars: int) -> None:
        with self._lock:
            self._held -= num_chars
