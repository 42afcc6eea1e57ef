"""The slots of sequences: found, given to a step, taken over when it is committed, shared, kept and freed.

A sequence holds the slot of its states after `num_computed` tokens. A chunk gets slots for the states after
its tokens, and holds them until its step is committed. States are kept for other requests at ends of blocks:
at the end of a prompt, at the point where another prompt diverges from it, and at the latest block of an
answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from itertools import chain

from serve_app.engine.cache.blocks import IntegrityError
from serve_app.engine.cache.slots import SlotPool
from serve_app.engine.sequence import Chunk, Sequence


class StateTables:
    """Slots over one pool; a block has `block_size` tokens."""

    def __init__(self, pool: SlotPool, block_size: int, *, prefix_cache: bool) -> None:
        self.pool = pool
        self._block_size, self._keeps = block_size, prefix_cache

    def reach(self, sequence: Sequence, known: int, first: int = 0) -> int:
        """The largest number of leading blocks, from `first` to `known`, at whose end the states are known
        too."""
        keys, find = sequence.block_keys, self.pool.find
        return next((i for i in range(known, first, -1) if find(keys[i - 1]) is not None), first)

    def enter(self, sequence: Sequence, blocks: int) -> None:
        """Give a sequence the known states after its leading `blocks`; 0: those before the first token."""
        self.free(sequence)
        if blocks:
            slot = self.pool.find(sequence.block_keys[blocks - 1])
            if slot is None:
                raise IntegrityError("the states of a prefix were dropped before a sequence got them")
            self.pool.acquire_found(slot)
            sequence.state = slot

    def assign(self, chunks: Several[Chunk]) -> None:
        """Give the chunks of a step their slots: after their own tokens, and after each token of a draft.

        The remaining slots are for those states inside the chunks that are to be kept.
        """
        spare = self.spare(chunks)
        for chunk in chunks:
            stops = [*range(chunk.own_end, chunk.end + 1)]
            if chunk.own_end - chunk.start > 1 and self._keeps:
                inside = [at for at in self._marks(chunk.sequence) if chunk.start < at < chunk.own_end]
                stops = sorted(inside)[: max(spare, 0)] + stops
                spare -= len(inside)
            chunk.source = chunk.sequence.state
            chunk.stops = tuple((at, self.pool.allocate()) for at in stops)

    def spare(self, chunks: Iterable[Chunk]) -> int:
        """How many slots are free beside those that the chunks of a step need."""
        return self.pool.num_free - sum(1 + len(chunk.draft) for chunk in chunks)

    def advance(self, sequence: Sequence, chunk: Chunk, position: int) -> None:
        """Let a sequence, or a fork of it, take over the states that a chunk has at `position`."""
        slot = dict(chunk.stops)[position]
        self.pool.acquire(slot)
        self.free(sequence)
        sequence.state = slot

    def keep(self, sequence: Sequence, chunk: Chunk) -> None:
        """Let others find the states at ends of blocks that a committed chunk has computed for `sequence`, or
        for a fork of it; those after accepted tokens of a draft too."""
        for at, slot in chunk.stops if self._keeps else ():
            if at > sequence.num_computed or at % self._block_size:
                continue
            key = sequence.block_keys[at // self._block_size - 1]
            if self.pool.find(key) is None and at >= chunk.own_end and at not in self._marks(sequence):
                if sequence.last_kept is not None:
                    self.pool.drop(sequence.last_kept, unless_found=True)
                sequence.last_kept = key
            self.pool.publish(slot, key)

    def settle(self, chunk: Chunk) -> None:
        """Release the slots of a chunk; the sequence keeps the slot it took over."""
        for _, slot in chunk.stops:
            self.pool.release(slot)
        chunk.stops = ()

    def fork(self, parent: Sequence, child: Sequence) -> None:
        if parent.state is not None:
            self.pool.acquire(parent.state)
        child.state = parent.state

    def forget(self, sequence: Sequence, keep: int) -> None:
        """Make states after more than the first `keep` tokens impossible for others to find."""
        for key in sequence.block_keys[keep // self._block_size :]:
            self.pool.drop(key)

    def free(self, sequence: Sequence) -> None:
        if sequence.state is not None:
            self.pool.release(sequence.state)
            sequence.state = None

    def check_integrity(self, sequences: Iterable[Sequence], chunks: Iterable[Chunk]) -> None:
        """Raise IntegrityError unless these sequences, and chunks of a running step, hold the slots."""
        own = (sequence.state for sequence in sequences if sequence.state is not None)
        self.pool.check_integrity(chain(own, (slot for chunk in chunks for _, slot in chunk.stops)))

    def _marks(self, sequence: Sequence) -> set[int]:
        """The positions in a prompt, at ends of blocks, whose states are always kept."""
        blocks = {(sequence.prompt_len - 1) // self._block_size, *sequence.branches}
        return {count * self._block_size for count in blocks if count}
