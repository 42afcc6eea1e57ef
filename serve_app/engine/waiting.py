"""Progress messages while something takes long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def waiting(progress: Callable[[str], None], line: str, every_s: float) -> Iterator[None]:
    """Inside the context, `progress` is called every `every_s` seconds with `line` and the seconds so far."""
    done, began = threading.Event(), time.monotonic()

    def report() -> None:
        while not done.wait(every_s):
            progress(f"{line}: {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
