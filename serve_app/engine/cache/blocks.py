"""Block ids: who holds them, which are free, and which of the free still hold a known prefix.

Integers only. It does not know sequences, tensors or what a block looks like.
A free block is either *empty* or *cached*: its content can be found through the
prefix index until the block is needed; the longest unused one goes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from serve_app.engine.cache.prefix import PrefixIndex


class IntegrityError(Exception):
    """The engine's own books do not balance: a bug of ours, never a client's doing."""


class BlockPool:
    """Blocks 0 .. num_blocks-1 with reference counts."""

    def __init__(self, num_blocks: int, block_size: int, index: PrefixIndex | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.index = PrefixIndex() if index is None else index
        self._references = [0] * num_blocks
        # Dictionaries as ordered sets: membership, removal and the oldest entry, all in O(1).
        self._empty: dict[int, None] = dict.fromkeys(range(num_blocks))
        self._cached: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._cached)

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
        return self._references[block] > 1

    def allocate(self, after: int | None = None) -> int:
        """A block with one reference, its old content forgotten.

        Prefers the empty block next to `after`, since attention reads adjacent
        blocks in one run, and gives up cached prefixes last.
        """
        if after is not None and after + 1 in self._empty:
            block = after + 1
            del self._empty[block]
        elif self._empty:
            block = next(iter(self._empty))
            del self._empty[block]
        elif self._cached:
            block = next(iter(self._cached))
            del self._cached[block]
            self.index.drop(block)
        else:
            raise IntegrityError("a block was asked of a full pool")
        self._references[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """One more reference to a block that is in use or cached."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise IntegrityError(f"block {block} was acquired while empty")
            del self._cached[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; the last one frees the block."""
        if self._references[block] <= 0:
            raise IntegrityError(f"block {block} was released more often than acquired")
        self._references[block] -= 1
        if self._references[block] == 0:
            (self._cached if block in self.index else self._empty)[block] = None

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
            self._empty[block] = None

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise IntegrityError unless `tables` are exactly the references there are."""
        held: Counter[int] = Counter()
        for table in tables:
            held.update(table)
        for block, count in enumerate(self._references):
            if held[block] != count:
                raise IntegrityError(
                    f"block {block} has {count} references, but {held[block]} tables hold it"
                )
            places = (block in self._empty) + (block in self._cached) + (count > 0)
            if places != 1:
                raise IntegrityError(f"block {block} is in {places} of the states empty, cached and used")
            if block in self._cached and block not in self.index:
                raise IntegrityError(f"block {block} counts as cached but is not in the prefix index")
            if block in self._empty and block in self.index:
                raise IntegrityError(f"block {block} counts as empty but is in the prefix index")
        for problem in self.index.inconsistencies():
            raise IntegrityError(problem)
