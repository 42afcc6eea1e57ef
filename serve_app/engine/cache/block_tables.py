"""The block tables of sequences: admit, grow, fork, index, free.

Records which block holds which tokens of which sequence. In a model with states, it updates the slots to
match. It does not decide which sequence runs (`scheduler`) and copies nothing itself: `grow` names the copies
to make.
"""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.engine.cache.blocks import BlockPool
from serve_app.engine.cache.slots import SlotPool
from serve_app.engine.cache.state_tables import StateTables
from serve_app.engine.sequence import Chunk, Sequence

BlockKey = tuple[int, bytes]  # the place of a block in its sequence, and its prefix key


class BlockTables:
    """Block tables over one pool."""

    def __init__(self, pool: BlockPool, slots: SlotPool | None = None, *, prefix_cache: bool = True) -> None:
        """`slots`: the slots for the states of a model; none if the model has no states."""
        self.pool = pool
        self.states: StateTables | None = None
        if slots is not None and slots.num_slots:
            self.states = StateTables(slots, pool.block_size, prefix_cache=prefix_cache)
        self._prefix_cache = prefix_cache
        self._block_size = pool.block_size

    def known_prefix(self, sequence: Sequence) -> list[int]:
        """The blocks at the start of a waiting sequence that another sequence has already computed.

        In a model with states, the states after the last block must be known too. If more blocks are known
        than have known states, the sequence will keep its own states at the end of these blocks, for the next
        sequence.
        """
        hits = self._known_from(sequence, 0)
        if self.states is None:
            return hits
        reach = self.states.reach(sequence, len(hits))
        sequence.branches = {len(hits)} if reach < len(hits) else set()
        return hits[:reach]

    def admit(self, sequence: Sequence, reserve: int = 0, hits: list[int] | None = None) -> bool:
        """Give a sequence blocks for all its tokens, known prefix blocks first.

        `hits` are the blocks of `known_prefix`; None: they are looked up. Sets `num_computed` to the number
        of tokens that need not be computed; the last token is always computed. Returns False, and changes
        nothing, if fewer than `reserve` blocks would stay free.
        """
        if hits is None:
            hits = self.known_prefix(sequence)
        total = self._blocks_for(sequence.num_tokens)
        revived = sum(map(self.pool.is_free, hits))
        if total - len(hits) + revived + reserve > self.pool.num_free:
            return False
        for block in hits:
            self.pool.acquire_found(block)
        sequence.block_table = hits
        sequence.num_computed = sequence.num_indexed = 0
        sequence.num_computed = len(hits) * self._block_size
        sequence.num_indexed = len(hits)
        if self.states is not None:
            self.states.enter(sequence, len(hits))
        self._extend(sequence, total)
        return True

    def catch_up(self, sequence: Sequence) -> None:
        """Let a sequence share the next blocks of its prompt if others have already computed these blocks."""
        first = sequence.num_computed // self._block_size
        if sequence.num_computed != first * self._block_size:
            return
        hits = self._known_from(sequence, first)
        if self.states is not None and hits:
            hits = hits[: self.states.reach(sequence, first + len(hits), first) - first]
        for i, block in enumerate(hits, first):
            own = sequence.block_table[i]
            if block != own:
                self.pool.acquire_found(block)
                sequence.block_table[i] = block
                self.pool.release(own)
            sequence.num_computed += self._block_size
            sequence.num_indexed = i + 1
        if self.states is not None and hits:
            self.states.enter(sequence, first + len(hits))

    def next_key(self, sequence: Sequence) -> BlockKey | None:
        """Place and prefix key of the block that a running sequence computes next.

        None if the block cannot be shared, because there is no prefix cache or the sequence does not fill the
        block.
        """
        i = sequence.num_computed // self._block_size
        if not self._prefix_cache or i >= sequence.num_tokens // self._block_size:
            return None
        self._hash(sequence, i + 1)
        return i, sequence.block_keys[i]

    def awaits(self, sequence: Sequence, computing: Iterable[BlockKey]) -> bool:
        """Whether the next block of `sequence` is one that another prompt computes in this step.

        If so, all blocks before that block are known, because one key stands for a whole prefix.
        """
        first, end = sequence.num_computed // self._block_size, self._num_shareable(sequence)
        for i, key in computing:
            if first <= i < end:
                self._hash(sequence, i + 1)
                if sequence.block_keys[i] == key:
                    return True
        return False

    def meet(self, sequence: Sequence, computing: Iterable[Sequence]) -> None:
        """Let prompts that begin like that of `sequence` keep their states where they diverge from it."""
        if self.states is None:
            return
        end = self._num_shareable(sequence)
        self._hash(sequence, end)
        for other in computing:
            self._hash(other, min(end, other.num_tokens // self._block_size))
            pairs = zip(sequence.block_keys[:end], other.block_keys, strict=False)
            common = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
            common = min(end, len(other.block_keys)) if common is None else common
            if common * self._block_size > other.num_computed:
                other.branches.add(common)

    def blocks_to_grow(self, sequence: Sequence) -> int:
        """How many free blocks a sequence needs to compute up to its last token."""
        missing = self._missing(sequence)
        return missing + (self._shared_tail(sequence) is not None)

    def blocks_to_grow_all(self, sequences: Iterable[Sequence]) -> int:
        """How many free blocks several sequences need; sequences may share the block that they will write."""
        needed = 0
        writers: dict[int, int] = {}  # of blocks that are shared
        for sequence in sequences:
            needed += self._missing(sequence)
            tail = self._shared_tail(sequence)
            if tail is not None:
                block = sequence.block_table[tail]
                writers[block] = writers.get(block, 0) + 1
        for block, count in writers.items():
            needed += min(count, self.pool.references(block) - 1)  # the last holder writes in place
        return needed

    def grow(self, sequence: Sequence) -> tuple[int, int] | None:
        """Add the blocks of `blocks_to_grow`.

        Returns the (source, target) copy to make before the step, if the block
        that will be written is shared with a fork.
        """
        copy = None
        tail = self._shared_tail(sequence)
        if tail is not None:
            source = sequence.block_table[tail]
            target = self.pool.allocate()
            sequence.block_table[tail] = target
            self.pool.release(source)
            copy = (source, target)
        self._extend(sequence, self._blocks_for(sequence.num_tokens))
        return copy

    def extend(self, sequence: Sequence, tokens: int) -> int:
        """Add blocks for `tokens` further tokens, as long as blocks are free; returns how many tokens fit."""
        most = (len(sequence.block_table) + self.pool.num_free) * self._block_size - sequence.num_tokens
        fitting = min(tokens, most)
        self._extend(sequence, self._blocks_for(sequence.num_tokens + fitting))
        return fitting

    def trim(self, sequence: Sequence) -> None:
        """Release the blocks that an extension has added but not used."""
        while len(sequence.block_table) > self._blocks_for(sequence.num_tokens):
            self.pool.release(sequence.block_table.pop())

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` share everything the parent has computed."""
        for block in parent.block_table:
            self.pool.acquire(block)
        child.block_table = list(parent.block_table)
        child.block_keys = list(parent.block_keys)
        child.num_computed = parent.num_computed
        child.num_indexed = parent.num_indexed
        if self.states is not None:
            self.states.fork(parent, child)

    def index(self, sequence: Sequence, num_computed: int) -> None:
        """Offer the full blocks among the first `num_computed` tokens to later requests."""
        full = num_computed // self._block_size
        if full <= sequence.num_indexed or not self._prefix_cache:
            return
        self._hash(sequence, full)
        for i in range(sequence.num_indexed, full):
            self.pool.publish(
                sequence.block_table[i], sequence.block_keys[i], self._block_tokens(sequence, i)
            )
        sequence.num_indexed = full

    def forget(self, sequence: Sequence, keep: int = 0) -> None:
        """Remove everything after the first `keep` tokens from the prefix index."""
        for block in sequence.block_table[keep // self._block_size :]:
            self.pool.unpublish(block)
        if self.states is not None:
            self.states.forget(sequence, keep)

    def free(self, sequence: Sequence) -> None:
        """Release all blocks, the last first, so that the blocks of a prefix stay cached longest."""
        for block in reversed(sequence.block_table):
            self.pool.release(block)
        sequence.block_table = []
        sequence.num_computed = sequence.num_indexed = 0
        if self.states is not None:
            self.states.free(sequence)

    def advance(self, sequence: Sequence, chunk: Chunk, position: int) -> None:
        """Note that a chunk has computed `sequence`, or a fork of it, up to `position`."""
        sequence.num_computed = position
        if self.states is not None:
            self.states.advance(sequence, chunk, position)

    def keep(self, sequence: Sequence, chunk: Chunk) -> None:
        """Offer the full blocks and the states that a committed chunk has computed for `sequence`, or for a
        fork of it, to later requests."""
        self.index(sequence, sequence.num_computed)
        if self.states is not None:
            self.states.keep(sequence, chunk)

    def settle(self, chunks: Iterable[Chunk]) -> None:
        """Release the slots held by chunks whose step is committed or was not run."""
        if self.states is not None:
            for chunk in chunks:
                self.states.settle(chunk)

    def check_integrity(self, sequences: list[Sequence], chunks: Iterable[Chunk] = ()) -> None:
        """Raise IntegrityError unless the pools' references are those of sequences and of running chunks."""
        self.pool.check_integrity(sequence.block_table for sequence in sequences)
        if self.states is not None:
            self.states.check_integrity(sequences, chunks)

    def _known_from(self, sequence: Sequence, first: int) -> list[int]:
        """The known blocks of a sequence from its block `first` on, up to the first unknown block."""
        hits: list[int] = []
        for i in range(first, self._num_shareable(sequence)):
            block = self._find(sequence, i)
            if block is None:
                break
            hits.append(block)
        return hits

    def _num_shareable(self, sequence: Sequence) -> int:
        """How many leading blocks can be taken over from another sequence that has computed them."""
        if not self._prefix_cache:
            return 0
        # A shared block yields no logits: those of the prompt that are wanted must be computed.
        wanted = sequence.wanted_from
        return (sequence.num_tokens - 1 if wanted is None else wanted) // self._block_size

    def _find(self, sequence: Sequence, i: int) -> int | None:
        self._hash(sequence, i + 1)
        return self.pool.index.find(sequence.block_keys[i], self._block_tokens(sequence, i))

    def _hash(self, sequence: Sequence, count: int) -> None:
        keys, index = sequence.block_keys, self.pool.index
        while len(keys) < count:
            parent = keys[-1] if keys else index.root(sequence.salt, sequence.adapter, _digest(sequence))
            keys.append(index.extend(parent, self._block_tokens(sequence, len(keys))))

    def _block_tokens(self, sequence: Sequence, i: int) -> list[int]:
        return sequence.token_ids[i * self._block_size : (i + 1) * self._block_size]

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _missing(self, sequence: Sequence) -> int:
        # Not below 0: a step that did not run may have left blocks for a draft.
        return max(0, self._blocks_for(sequence.num_tokens) - len(sequence.block_table))

    def _shared_tail(self, sequence: Sequence) -> int | None:
        i = sequence.num_computed // self._block_size
        if i < len(sequence.block_table) and self.pool.is_shared(sequence.block_table[i]):
            return i
        return None

    def _extend(self, sequence: Sequence, total: int) -> None:
        table = sequence.block_table
        missing = total - len(table)
        for _ in range(missing):
            table.append(self.pool.allocate(after=table[-1] if table else None, together=missing))


def _digest(sequence: Sequence) -> str | None:
    """A digest of the embedding rows of a prompt's virtual tokens."""
    return None if sequence.prompt_rows is None else sequence.prompt_rows.digest
