"""Facts about memory for a block pool: how much of the cache has it, and the price of more.

Numbers alone, from an attention backend, which has the cache, to the pool, which knows no tensor.
"""

from __future__ import annotations

from typing import Protocol


class BlockMemory(Protocol):
    """The memory of a cache that the system backs with memory gradually, in the order of its blocks."""

    @property
    def ready_blocks(self) -> int:
        """How many blocks, from the first on, are backed by memory. It only grows, and reading it does not
        wait."""
        ...

    @property
    def block_seconds(self) -> float:
        """The time it recently took to get memory for a block; 0 if unknown."""
        ...

    @property
    def run_seconds(self) -> float:
        """The extra time for the first block of a run: the system gives memory around it in every layer."""
        ...
