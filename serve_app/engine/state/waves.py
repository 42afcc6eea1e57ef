"""The spans of rows that a step's states need, each between two slots, in waves that run one after another.

A chunk is one span, or several spans if states inside it are kept: at a boundary that another request may
share, or after each token of a draft. The n-th spans of all chunks are one wave; the spans of a wave run as a
batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from serve_app.engine.kernels.spans import Spans
from serve_app.engine.sequence import Chunk
from serve_app.engine.transfer import send


class Span(NamedTuple):
    """Rows of one sequence in a batch, which lead from the state in one slot to the state in another slot."""

    first: int  # row
    length: int  # rows
    source: int
    target: int


class Wave:
    """Spans that do not depend on each other, the longest first."""

    def __init__(self, spans: Iterable[Span], device: torch.device) -> None:
        self.spans = sorted(spans, key=lambda span: -span.length)
        self.longest = self.spans[0].length
        columns = np.ascontiguousarray(np.array(self.spans, dtype=np.int64).T)
        self.table = send(device, columns)[0]  # [4, S]: the fields of the spans
        self.firsts, _, self.sources, self.targets = self.table.unbind()
        self._windows: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._owners: torch.Tensor | None = None

    @property
    def native(self) -> Spans:
        """The argument for native functions."""
        return replace(self._spans, table=self.table.contiguous())

    @cached_property
    def _spans(self) -> Spans:
        return Spans.of(self.spans, self.table)

    def tokens(self) -> Iterator[torch.Tensor]:
        """For i = 0, 1, ...: the rows [n] of the n spans that have an i-th token."""
        count = len(self.spans)
        for i in range(self.longest):
            while self.spans[count - 1].length <= i:
                count -= 1
            yield self.firsts[:count] + i

    def owners(self, rows: int) -> torch.Tensor:
        """[T] int64: the span of each row of a batch; -1: it is in none. T is `rows` of the first call."""
        if self._owners is None:
            found = np.full(rows, -1, dtype=np.int64)
            for number, span in enumerate(self.spans):
                found[span.first : span.first + span.length] = number
            self._owners = send(self.table.device, found)[0]
        return self._owners

    def windows(self, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Indices for a convolution over `width` tokens. They point into the histories [S * (width - 1)] of
        the spans, followed by all rows of the batch.

        Returns the rows [R] of the wave, the window [R, width] of each, and the new history [S, width - 1].
        """
        if width not in self._windows:
            past, count = width - 1, len(self.spans)
            rows, windows, ends = list[int](), list[list[int]](), list[list[int]]()
            for i, span in enumerate(self.spans):
                known = [i * past + k for k in range(past)]
                known += range(count * past + span.first, count * past + span.first + span.length)
                rows += range(span.first, span.first + span.length)
                windows += [known[k : k + width] for k in range(span.length)]
                ends.append(known[len(known) - past :])
            arrays = (np.array(x, dtype=np.int64) for x in (rows, windows, ends))
            made = send(self.firsts.device, *arrays)
            self._windows[width] = made[0], made[1], made[2].view(count, past)
        return self._windows[width]


class LastingWave(Wave):
    """A wave whose spans are known only when it runs: what kernels read of them is in given memory."""

    def __init__(self, table: torch.Tensor, owners: torch.Tensor) -> None:
        """`table` [4, S] int64: as of a wave, spans of length 0 are null. `owners` [T] int64."""
        super().__init__([Span(0, 0, 0, 0)] * table.shape[1], table.device)
        self.table, self._owners = table, owners

    def tokens(self) -> Iterator[torch.Tensor]:
        """Raises RuntimeError: plain torch cannot compute such a wave."""
        raise RuntimeError("the spans of this wave are known to the device alone")

    def windows(self, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `tokens`."""
        raise RuntimeError("the spans of this wave are known to the device alone")


def waves_of(chunks: Iterable[Chunk], zero: int, unread: int, device: torch.device) -> list[Wave]:
    """The waves of a step of `chunks`.

    `zero`: the slot of the state before the first token. `unread`: a slot for states that are not kept.
    """
    waves: list[list[Span]] = []
    row = 0
    for chunk in chunks:
        source, position = zero if chunk.source is None else chunk.source, chunk.start
        stops = chunk.stops if chunk.stops else ((chunk.end, unread),)
        for number, (end, target) in enumerate(stops):
            if number == len(waves):
                waves.append([])
            waves[number].append(Span(row, end - position, source, target))
            row += end - position
            source, position = target, end
    return [Wave(spans, device) for spans in waves]
