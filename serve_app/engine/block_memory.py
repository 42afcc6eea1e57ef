"""What a block pool is told of memory: how much of the cache has it, and what the system takes for more.

Numbers alone, from an attention backend, which has the cache, to the pool, which knows no tensor.
"""

from __future__ import annotations

from typing import Protocol


class BlockMemory(Protocol):
    """The memory of a cache to which the system gives it little by little, in the order of blocks."""

    @property
    def ready_blocks(self) -> int:
        """So many blocks, from the first, have their memory. It only grows, and is read without a wait."""
        ...

    @property
    def block_seconds(self) -> float:
        """What the system took of late for the memory of a block; 0 where nobody knows yet."""
        ...

    @property
    def run_seconds(self) -> float:
        """What it takes besides for the first block of a run: it gives memory around it, in every layer."""
        ...
