"""How far a model is from another one over a text: divergence, perplexity, and the same likeliest token.

Each runs by the path on which it is served, without an engine. The log-probabilities of the first one lie in
a file until the second is compared with them, so that the memory need not hold both models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Final, TypeAlias

import numpy as np
import torch

from serve_app.engine.batch import build_batch
from serve_app.engine.cache.slots import SlotPool
from serve_app.engine.cache.state_tables import StateTables
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.sequence import Sequence as Line
from serve_app.types import SamplingParams

Progress: TypeAlias = Callable[[str], None]
Chunks: TypeAlias = Sequence[Sequence[int]]  # token ids; each chunk is computed without those before it
PIECE: Final = 256  # tokens of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """A model beside its reference, over the tokens of a text. Divergences are in nats."""

    tokens: int
    mean_divergence: float  # Kullback-Leibler, of the model from the reference
    largest_divergence: float
    perplexity: float
    reference_perplexity: float
    agreement: float  # the part of the tokens whose likeliest token is the same


class Reference:
    """The log-probabilities of a model over a text, in a file."""

    def __init__(self, file: IO[bytes], runner: ModelRunner, chunks: Chunks, progress: Progress) -> None:
        """`file` is empty. Raises OSError if the disk is too small."""
        self._file, self._chunks, self._width = file, chunks, runner.vocab_size
        size = 4 * self._width * predicted(chunks)
        progress(f"{size / 2**30:.2f} GiB of log-probabilities of the reference go to a file")
        for rows in log_probabilities(runner, chunks, progress):
            file.write(rows.numpy().tobytes())

    def compare(self, runner: ModelRunner, progress: Progress) -> Accuracy:
        """Another model beside this one."""
        wanted = torch.tensor([each for chunk in self._chunks for each in chunk[1:]])
        at, same, likelihood, own = 0, 0, 0.0, 0.0
        divergences: list[torch.Tensor] = []
        for rows in log_probabilities(runner, self._chunks, progress):
            reference, found = self._rows(at, len(rows)), rows
            if reference.shape != found.shape:  # one of them pads its vocabulary
                width = min(reference.shape[1], found.shape[1])
                reference, found = (each[:, :width].log_softmax(-1) for each in (reference, found))
            terms = (reference.exp() * (reference - found)).nan_to_num(0.0)
            # Of nearly equal distributions, rounding may lead below zero.
            divergences.append(terms.sum(-1, dtype=torch.float64).clamp_min(0.0))
            same += int((reference.argmax(-1) == found.argmax(-1)).sum())
            next_ids = wanted[at : at + len(rows), None]
            likelihood += float(found.gather(1, next_ids).sum(dtype=torch.float64))
            own += float(reference.gather(1, next_ids).sum(dtype=torch.float64))
            at += len(rows)
        divergence = torch.cat(divergences)
        return Accuracy(
            tokens=at,
            mean_divergence=float(divergence.mean()),
            largest_divergence=float(divergence.max()),
            perplexity=math.exp(-likelihood / at),
            reference_perplexity=math.exp(-own / at),
            agreement=same / at,
        )

    def _rows(self, start: int, count: int) -> torch.Tensor:
        """Of `count` predicted tokens from `start` on: [count, V]."""
        self._file.seek(4 * self._width * start)
        data = bytearray(self._file.read(4 * self._width * count))
        return torch.from_numpy(np.frombuffer(data, "<f4")).view(count, self._width)


def predicted(chunks: Chunks) -> int:
    """The tokens that have one before them in their chunk."""
    return sum(len(each) - 1 for each in chunks)


def log_probabilities(runner: ModelRunner, chunks: Chunks, progress: Progress) -> Iterator[torch.Tensor]:
    """Of the token after each one in a chunk, for all but its last: float32 [n, V] on the CPU, in order."""
    done = 0
    for chunk in chunks:
        left = len(chunk) - 1  # nothing in the chunk says what its last token should predict
        for logits in text_logits(runner, chunk, PIECE):
            rows = logits[:left].log_softmax(-1).cpu()
            left -= len(rows)
            done += len(rows)
            yield rows
        progress(f"{done:,} of {predicted(chunks):,} tokens")


def text_logits(runner: ModelRunner, token_ids: Sequence[int], piece: int) -> Iterator[torch.Tensor]:
    """[n, V] float32 for each `piece` of a text, which is computed from its beginning as a prompt in pieces.

    Overwrites the runner's cache, which must hold the text.
    """
    blocks = -(-len(token_ids) // runner.block_size)
    if blocks > runner.num_blocks:
        raise ValueError(f"a text of {len(token_ids)} tokens does not fit {runner.num_blocks} blocks")
    text = Line(
        request_id="text",
        index=0,
        prompt_len=len(token_ids),
        token_ids=list(token_ids),
        sampling=SamplingParams(),
        seed=0,
        block_table=list(range(blocks)),
    )
    states = StateTables(SlotPool(runner.num_slots), runner.block_size, prefix_cache=False)
    for start in range(0, len(token_ids), piece):
        chunk = Chunk(text, start, min(piece, len(token_ids) - start), start)
        if runner.num_slots:
            states.assign([chunk])
        yield runner.run(build_batch([chunk], runner.block_size, runner.device))
        if runner.num_slots:
            states.advance(text, chunk, chunk.end)
            states.settle(chunk)
