"""Runners without weights, for tests of the engine and of everything above it.

`HashRunner` is the honest one: its logits are a hash of the whole visible token
prefix, read back through a paged cache of token ids. A wrong block, slot,
position, copy or length therefore shows as a wrong token.
"""

from __future__ import annotations

import threading
from collections import abc
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from serve_app.engine.batch import Batch
from serve_app.engine.block_memory import BlockMemory
from serve_app.engine.sampling.choice import Choice
from serve_app.engine.sampling.sampled import Sampled
from serve_app.engine.sequence import Chunk, Sequence

VOCAB_SIZE = 32  # a 64-byte digest is one 16-bit number a token


def hash_logits(prefix: abc.Sequence[int], vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    """Logits [vocab_size] in 0 .. 8 that depend on every token of `prefix` and its length."""
    data = np.asarray(prefix, dtype=np.int64).tobytes()
    parts = (blake2b(data, salt=part.to_bytes(4, "little")) for part in range(-(-vocab_size // 32)))
    digest = b"".join(part.digest() for part in parts)
    return np.frombuffer(digest, dtype=np.uint16)[:vocab_size].astype(np.float32) / 8192.0


def greedy_tokens(prompt: abc.Iterable[int], count: int) -> list[int]:
    """What HashRunner and greedy sampling make of `prompt`, worked out without an engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(hash_logits(tokens))))
    return tokens[-count:]


class HashRunner:
    """Logits from the token prefix, through a fake paged cache, or through fake states if there are slots."""

    memory: BlockMemory | None = None
    stages = 1

    def __init__(
        self, num_blocks: int = 64, block_size: int = 4, vocab_size: int = VOCAB_SIZE, num_slots: int = 0
    ) -> None:
        self.vocab_size = vocab_size
        self.table_width = 4  # the contents of tables are not looked at
        self.num_blocks = num_blocks
        self.num_slots = num_slots
        self.states: dict[int, tuple[int, ...]] = {}  # the tokens that each slot stands for
        self.block_size = block_size
        self.device = torch.device("cpu")
        self.cache = np.full((num_blocks, block_size), -1, dtype=np.int64)
        self.batches: list[list[tuple[str, int, int]]] = []  # (request id, start, length) of each chunk

    def run(self, batch: Batch) -> torch.Tensor:
        self.batches.append([(c.sequence.request_id, c.start, c.length) for c in batch.chunks])
        context = batch.context
        starts, lens = context.query_start.tolist(), context.context_lens.tolist()
        self.cache.reshape(-1)[context.slots.numpy()] = batch.input_ids.numpy()
        wanted = batch.logit_rows.tolist()
        logits = []
        for s in range(context.num_sequences):
            cached = self.cache[context.block_tables[s].numpy()].reshape(-1)
            if self.num_slots:
                cached = self._advance(batch.chunks[s], batch.input_ids[starts[s] : starts[s + 1]].tolist())
            for row in range(starts[s], starts[s + 1]):
                position = lens[s] - (starts[s + 1] - row)
                if batch.positions[row] != position:
                    raise AssertionError(f"row {row} is at {position}, but told {batch.positions[row]}")
                if row in wanted:
                    logits.append(hash_logits(cached[: position + 1], self.vocab_size))
        if len(logits) != len(wanted):
            raise AssertionError("logit rows are not distinct rows of the batch")
        return torch.from_numpy(np.array(logits, dtype=np.float32).reshape(-1, self.vocab_size))

    def launch(self, batch: Batch) -> abc.Callable[[], torch.Tensor]:
        return partial(self.run, batch)

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.cache[target] = self.cache[source]

    def check(self) -> None:
        """No device of its is ever lost."""

    def _advance(self, chunk: Chunk, ids: list[int]) -> npt.NDArray[np.int64]:
        """The tokens up to the end of a chunk, by its states; fills the slots that it names."""
        before = () if chunk.source is None else self.states[chunk.source]
        if len(before) != chunk.start:
            raise AssertionError(f"the states are those after {len(before)} tokens, not {chunk.start}")
        for position, slot in chunk.stops:
            if slot == chunk.source:
                raise AssertionError("a step may run twice, so it must not overwrite the states it reads")
            self.states[slot] = (*before, *ids[: position - chunk.start])
        return np.array((*before, *ids), dtype=np.int64)


class UniformRunner(HashRunner):
    """Every token is equally likely."""

    def run(self, batch: Batch) -> torch.Tensor:
        return torch.zeros_like(super().run(batch))


@dataclass
class Faults:
    """What goes wrong in an EvilRunner. May be changed while it runs."""

    raise_for: set[str] = field(default_factory=set)  # request ids whose chunks raise
    nan_for: set[str] = field(default_factory=set)  # request ids whose last row is NaN
    error: Exception = field(default_factory=lambda: RuntimeError("scripted fault"))  # what they raise
    raise_at: set[int] = field(default_factory=set)  # calls of run, counted from 0
    copies: bool = False  # copy_blocks raises
    broken: bool = False  # every call raises: a sticky device error
    hang: threading.Event | None = None  # run waits for it


class EvilRunner(HashRunner):
    """A HashRunner with scripted faults."""

    def __init__(self, faults: Faults, num_blocks: int = 64, block_size: int = 4, num_slots: int = 0) -> None:
        super().__init__(num_blocks, block_size, num_slots=num_slots)
        self.faults = faults
        self.calls = 0

    def run(self, batch: Batch) -> torch.Tensor:
        call, self.calls = self.calls, self.calls + 1
        if self.faults.hang is not None:
            self.faults.hang.wait(30)
        ids = {chunk.sequence.request_id for chunk in batch.chunks}
        if self.faults.broken or call in self.faults.raise_at or ids & self.faults.raise_for:
            raise self.faults.error
        logits = super().run(batch)
        row = 0
        for chunk in batch.chunks:
            row += chunk.num_logits
            if chunk.num_logits and chunk.sequence.request_id in self.faults.nan_for:
                logits[row - 1] = torch.nan
        return logits

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        if self.faults.copies or self.faults.broken:
            raise RuntimeError("scripted fault in a copy")
        super().copy_blocks(pairs)


class ArgmaxSampler:
    """Greedy whatever the request asks for; raises for the request ids it is told to."""

    def __init__(self, raise_for: abc.Iterable[str] = ()) -> None:
        self.raise_for = set(raise_for)

    def by_row(self, sequence: Sequence) -> bool:
        return False

    def choose(self, logits: torch.Tensor, sequences: abc.Sequence[Sequence]) -> Choice:
        raise NotImplementedError("only engines that wait use this sampler")

    def sample(
        self, logits: torch.Tensor, sequences: abc.Sequence[Sequence], ahead: abc.Sequence[int] | None = None
    ) -> list[Sampled]:
        chosen = logits.argmax(-1).tolist()
        logits.fill_(torch.nan)  # the real one edits in place, too
        if self.raise_for & {sequence.request_id for sequence in sequences}:
            raise RuntimeError("scripted fault in the sampler")
        return [Sampled(token) for token in chosen]
