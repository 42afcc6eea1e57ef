"""Facts about memory for a block pool: how much of the cache is backed, and what backing more of it costs.

Only numbers: an attention backend owns the cache and passes them to the pool, which has no tensors.
"""

from __future__ import annotations

from typing import Protocol


class BlockMemory(Protocol):
    """The memory behind a cache, which the system provides gradually, in the order of the cache's blocks."""

    @property
    def ready_blocks(self) -> int:
        """How many blocks, from the first on, are backed by memory. The number only grows, and reading it
        does not wait."""
        ...

    @property
    def block_seconds(self) -> float:
        """How long it recently took the system to provide memory for a block; 0 if unknown."""
        ...

    @property
    def run_seconds(self) -> float:
        """The extra time for the first block of a run: memory around it is also provided, in every layer."""
        ...
