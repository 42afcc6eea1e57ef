"""The steps of a trial: prompts, a prompt that continues after its first piece, short and long decodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from serve_app.engine.batch import Batch, build_batch
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

PIECE: Final = 512  # prompt tokens of a step: the reference holds scores of all of them at once
SHORT: Final = (300, 1, 33, 64)  # tokens of the other prompts, at most
DECODES: Final = 3
LATE: Final = (90, 40)  # tokens of prompts that come when these decodes are done, at most
ADAPTERS: Final = (
    "first",
    "second",
    "first",
)  # of the sequences; the others have none, nor has the last decode


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a trial, and the blocks that a KV cache needs for these prompts and their decodes."""

    lengths: tuple[int, ...]  # in tokens; the last is the longest
    block_size: int

    @classmethod
    def of(cls, longest: int, block_size: int) -> Prompts:
        return cls((*(min(length, longest) for length in SHORT), longest), block_size)

    @property
    def blocks_each(self) -> int:
        return -(-(self.lengths[-1] + DECODES + 1) // self.block_size)

    @property
    def num_blocks(self) -> int:
        return self.blocks_each * len(self.lengths)


def steps_of(
    prompts: Prompts, vocab_size: int, device: torch.device, adapted: bool = False
) -> Iterator[Batch]:
    """Steps over sequences whose blocks are scattered, in the order in which the steps must run.

    Each decode has fewer sequences than the one before. The longest sequence is in all of the decodes. In the
    last step, prompts join the sequences of the last decode. `adapted`: the sequences have ADAPTERS, except
    in the last step.
    """
    random = torch.Generator().manual_seed(0)
    tables = torch.randperm(prompts.num_blocks, generator=random).view(len(prompts.lengths), -1).tolist()
    running = []
    adapters = *(ADAPTERS if adapted else ()), *[None] * len(prompts.lengths)
    for length, table, adapter in zip(prompts.lengths, tables, adapters, strict=False):
        ids = torch.randint(vocab_size, (length + DECODES + 1,), generator=random).tolist()
        running.append(Sequence("", 0, length, ids, SamplingParams(), 0, block_table=table, adapter=adapter))
    done = [0] * len(running)
    while any(before < length for before, length in zip(done, prompts.lengths, strict=True)):
        chunks, room = [], PIECE
        for index, length in enumerate(prompts.lengths):
            # The longest prompt begins beside the others, and goes on alone.
            count = min(length - done[index], room)
            if count:
                chunks.append(Chunk(running[index], done[index], count, done[index] + count - 1))
                done[index] += count
                room -= count
        yield build_batch(chunks, prompts.block_size, device)
    for step in range(DECODES):
        alive = list(zip(running, prompts.lengths, strict=True))[step * len(running) // DECODES :]
        chunks = [Chunk(sequence, length + step, 1, length + step) for sequence, length in alive]
        yield build_batch(chunks, prompts.block_size, device)
    # In the blocks of sequences that ended.
    late = [
        Sequence(
            "",
            0,
            length,
            [token % vocab_size for token in range(length)],
            SamplingParams(),
            0,
            block_table=table,
        )
        for length, table in zip((min(each, prompts.lengths[0]) for each in LATE), tables, strict=False)
    ]
    first, second = (Chunk(each, 0, each.prompt_len, each.prompt_len - 1) for each in late)
    decodes = [Chunk(each, at, 1, at) for each, at in ((s, n + DECODES) for s, n in alive)]
    yield build_batch([first, *decodes, second], prompts.block_size, device)
