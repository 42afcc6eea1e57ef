"""Sequences that wait for their grammar, and masks computed ahead of a step.

Grammars are compiled, and masks computed, in threads of their own with the interpreter lock
released. So a slow grammar delays its own request, but never a step. Handles sequences and their constraints,
but no logits, text or batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from llguidance import LLTokenizer

from serve_app.engine.grammar.constraint import Constraint
from serve_app.engine.sequence import Chunk, Sequence, Status

MASK_THREADS: Final = min(8, os.cpu_count() or 1)


class GrammarQueue:
    """The sequences of one engine whose grammars are being compiled."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiling = ThreadPoolExecutor(1, "grammar")
        self._masks = ThreadPoolExecutor(MASK_THREADS, "mask")
        self._held: dict[Sequence, Future[Constraint]] = {}

    def hold(self, sequences: list[Sequence], grammar: str) -> None:
        """Keep the new sequences of a request until `grammar`, in llguidance's notation, is compiled.

        A sequence that already has output continues after that output.
        """
        compiled = self._compiling.submit(Constraint.compile, grammar, self._tokenizer)
        for sequence in sequences:
            sequence.status = Status.HELD
            self._held[sequence] = compiled
            if len(sequences) > 1 or sequence.num_output:
                output, forces = tuple(sequence.output_ids), sequence.takes_forced
                self._held[sequence] = self._compiling.submit(_go_on, compiled, output, forces)

    def release(self, wait_s: float) -> list[Sequence]:
        """The sequences whose constraints are ready; waits up to `wait_s` for the first one.

        Sequences that have ended meanwhile are dropped.
        """
        if not self._held:
            return []
        wait(self._held.values(), wait_s, FIRST_COMPLETED)
        ready = [sequence for sequence, future in self._held.items() if future.done()]
        for sequence in ready:
            sequence.constraint = self._held.pop(sequence).result()
        return [sequence for sequence in ready if sequence.status is Status.HELD]

    def prepare(self, chunks: Iterable[Chunk]) -> None:
        """Start to compute the masks of the tokens that chunks sample, if all text before them is known."""
        for chunk in chunks:
            sequence = chunk.sequence
            ready = chunk.samples and not sequence.num_pending and sequence.status is Status.RUNNING
            if ready and sequence.constraint is not None:
                sequence.constraint.prepare(sequence.output_ids, self._masks)


def _go_on(compiled: Future[Constraint], output: tuple[int, ...], forces: bool) -> Constraint:
    """Runs after the grammar is compiled, in the same thread."""
    return compiled.result().go_on(output, forces=forces)
