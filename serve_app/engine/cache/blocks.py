"""Block ids: how often they are used, which are free, and which free blocks still have a known prefix.

Integers only. It does not depend on sequences, tensors or what a block looks like.
A free block is *unused*, *empty* or *cached*. An unused block has never been handed out; unused blocks are
handed out from the first to the last. A cached block can be found through the prefix index until the block is
needed for something else; the block that has been free the longest goes first.

The system may not have backed an unused block with memory yet; then the first write to it has to wait for
memory. If that wait is significant, cached blocks that no second sequence has found are taken first. The wait
for a single block is longer than that for a block in a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from serve_app.engine.block_memory import BlockMemory
from serve_app.engine.cache.prefix import PrefixIndex

# A wait for a block's memory counts if it takes at least this part of the time to compute a block. Below it,
# a prefix is worth more: some are found only later, and those that are gone are computed again.
WAIT_SHARE: Final = 0.25


class IntegrityError(Exception):
    """The engine's bookkeeping is inconsistent: a bug of ours, never a client's doing."""


class BlockPool:
    """Blocks 0 .. num_blocks-1 with reference counts."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        index: PrefixIndex | None = None,
        memory: BlockMemory | None = None,
    ) -> None:
        """`memory`: None if all blocks are already backed by memory."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.index = PrefixIndex() if index is None else index
        self._memory = memory
        self._computing_s = inf  # what computing a block takes, where that is known
        self._references = [0] * num_blocks
        self._first_unused = 0
        # Dictionaries as ordered sets: membership, removal and the oldest entry, all in O(1).
        self._empty: dict[int, None] = {}
        self._cached: dict[int, None] = {}
        self._cached_once: dict[int, None] = {}  # those of the cached that no second sequence has found
        self._found: set[int] = set()  # blocks whose content a second sequence has found

    @property
    def num_free(self) -> int:
        return self.num_blocks - self._first_unused + len(self._empty) + len(self._cached)

    @property
    def num_ready(self) -> int:
        """The number of blocks that are backed by memory, used or free."""
        given = self.num_blocks if self._memory is None else self._memory.ready_blocks
        return max(given, self._first_unused)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    def is_free(self, block: int) -> bool:
        return self._references[block] == 0

    def references(self, block: int) -> int:
        return self._references[block]

    def is_shared(self, block: int) -> bool:
        """Whether others use a block or may find it, so that nothing may be written to it."""
        return self._references[block] > 1 or block in self.index

    def weigh_waits(self, computing_s: float) -> None:
        """From now on, compare waits for memory with `computing_s`, the time that computing a block takes."""
        self._computing_s = computing_s

    def allocate(self, after: int | None = None, together: int = 1) -> int:
        """A block with one reference, its old content dropped. `together`: how many blocks are taken at once.

        Prefers the unused or empty block next to `after`, since attention reads adjacent blocks in one run;
        cached prefixes are given up last. If the wait for memory is significant, unused blocks without memory
        come after all others except prefixes that were found again.
        """
        unused = self._first_unused
        if after is not None and after + 1 in self._empty:
            block = after + 1
            del self._empty[block]
        elif unused < self.num_blocks and self._is_ready(unused, together):
            block = self._take_unused()
        elif self._empty:
            block = next(iter(self._empty))
            del self._empty[block]
        elif unused < self.num_blocks and not self._cached_once:
            block = self._take_unused()
        elif self._cached:
            block = next(iter(self._cached_once if unused < self.num_blocks else self._cached))
            del self._cached[block]
            self._cached_once.pop(block, None)
            self.index.drop(block)
        else:
            raise IntegrityError("a block was asked of a full pool")
        self._found.discard(block)
        self._references[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a block that is in use."""
        if self._references[block] == 0:
            raise IntegrityError(f"block {block} was acquired while free")
        self._references[block] += 1

    def acquire_found(self, block: int) -> None:
        """Add a reference to a block, in use or cached, in which a sequence has found its own tokens."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise IntegrityError(f"block {block} was found while empty")
            del self._cached[block]
            self._cached_once.pop(block, None)
        self._found.add(block)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drop one reference; dropping the last one frees the block."""
        if self._references[block] <= 0:
            raise IntegrityError(f"block {block} was released more often than acquired")
        self._references[block] -= 1
        if self._references[block] > 0:
            return
        if block not in self.index:
            self._empty[block] = None
            return
        self._cached[block] = None
        if block not in self._found:
            self._cached_once[block] = None

    def publish(self, block: int, key: bytes, token_ids: Sequence[int]) -> None:
        """Let a full block that is in use be found by its prefix."""
        if self._references[block] == 0:
            raise IntegrityError(f"block {block} was published while free")
        self.index.put(key, block, token_ids)

    def unpublish(self, block: int) -> None:
        """Take a block out of the prefix index."""
        self.index.drop(block)
        if block in self._cached:
            del self._cached[block]
            self._cached_once.pop(block, None)
            self._empty[block] = None

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise IntegrityError unless `tables` match the references that exist exactly."""
        held: Counter[int] = Counter()
        for table in tables:
            held.update(table)
        for block, count in enumerate(self._references):
            if held[block] != count:
                raise IntegrityError(
                    f"block {block} has {count} references, but {held[block]} tables hold it"
                )
            places = (block in self._empty) + (block in self._cached) + (count > 0)
            places += block >= self._first_unused
            if places != 1:
                raise IntegrityError(
                    f"block {block} is in {places} of the states unused, empty, cached, used"
                )
            if (block in self._cached_once) != (block in self._cached and block not in self._found):
                raise IntegrityError(f"block {block} was found again, or not, and is cached otherwise")
            if block in self._cached and block not in self.index:
                raise IntegrityError(f"block {block} counts as cached but is not in the prefix index")
            if block in self._empty and block in self.index:
                raise IntegrityError(f"block {block} counts as empty but is in the prefix index")
        for problem in self.index.inconsistencies():
            raise IntegrityError(problem)

    def _is_ready(self, block: int, together: int) -> bool:
        """Whether an unused block can be taken without a significant wait."""
        memory = self._memory
        if memory is None or block < memory.ready_blocks:
            return True
        return memory.block_seconds + memory.run_seconds / together <= WAIT_SHARE * self._computing_s

    def _take_unused(self) -> int:
        self._first_unused += 1
        return self._first_unused - 1
