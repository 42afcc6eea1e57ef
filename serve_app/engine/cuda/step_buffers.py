"""The inputs of a step, always in the same memory, from which a graph reads them."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.engine.cuda.adapters.tiles import FEW, MANY, Tiles, most_tiles
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.model.memory import CachePlan

NO_SLOT: Final = -1


class StepBuffers:
    """The inputs of a step of up to T rows of up to S sequences."""

    def __init__(
        self,
        rows: int,
        sequences: int,
        hidden_size: int,
        cache: CachePlan,
        device: torch.device,
        adapters: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`rows` is at least `sequences`; each sequence has one of `adapters` adapters, or none.

        `dtype`: of the embedded rows, [rows, hidden_size].
        """
        self._length, self._block_size = cache.max_model_len, cache.block_size
        width = -(-cache.max_model_len // cache.block_size)
        self.sequences = sequences
        self.states = torch.zeros(rows, hidden_size, dtype=dtype, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = torch.full((rows,), NO_SLOT, dtype=torch.int64, device=device)
        self._lens = torch.zeros(sequences, dtype=torch.int32, device=device)
        self._tables = torch.zeros(sequences, width, dtype=torch.int32, device=device)
        # Where sequences begin: of decodes, which have a row each, and of others.
        self._each = torch.arange(sequences + 1, dtype=torch.int32, device=device)
        self._starts = torch.zeros(sequences + 1, dtype=torch.int32, device=device)
        self._adapters = min(adapters, sequences)
        self._order = torch.zeros(rows, dtype=torch.int32, device=device)
        most = max(most_tiles(sequences, FEW, self._adapters), most_tiles(rows, MANY, self._adapters))
        self._bounds = torch.zeros(most, 3, dtype=torch.int32, device=device)

    def decodes(self, count: int) -> ForwardContext:
        """The context of `count` decodes; its tensors have whatever `fill` wrote last."""
        return self._context(self._each[: count + 1], (1,) * count, count, count)

    def any(self, rows: int) -> ForwardContext:
        """The context of `rows` rows of any sequences; its tensors have whatever `fill` wrote last."""
        count = min(rows, self.sequences)
        return self._context(self._starts[: count + 1], (), rows, count)

    def tiles(self, rows: int, size: int) -> Tiles:
        """Tiles of up to `size` rows for the adapters of `rows` rows: whatever `fill_tiles` wrote last."""
        return Tiles(self._order[:rows], self._bounds[: most_tiles(rows, size, self._adapters)], size)

    def fits(self, context: ForwardContext) -> bool:
        """Whether the sequences and block tables of a step fit in the buffers."""
        count, width = context.block_tables.shape
        return count <= self.sequences and width <= self._tables.shape[1]

    def fill(self, states: torch.Tensor, positions: torch.Tensor, context: ForwardContext, rows: int) -> None:
        """Write the rows of a step, followed by null rows up to `rows`; all further sequences are null."""
        tokens, (count, width) = len(states), context.block_tables.shape
        self.states[:tokens].copy_(states)
        self.positions[:tokens].copy_(positions)
        self._slots[:tokens].copy_(context.slots)
        self._lens[:count].copy_(context.context_lens)
        self._tables[:count, :width].copy_(context.block_tables)
        if tokens < rows:
            self.states[tokens:rows].zero_()
            self._slots[tokens:rows].fill_(NO_SLOT)
        more = min(rows, self.sequences)
        if count < more:
            self._lens[count:more].zero_()
        if tokens != count:
            self._starts[: count + 1].copy_(context.query_start)
            self._starts[count + 1 :].fill_(tokens)

    def pretend(self, rows: int, prompts: int) -> None:
        """Fill `rows` rows with as few prompts as possible: at most `prompts`, each of an allowed length.
        If `prompts` is 0, fill them with decodes of one token each. They write nothing."""
        self.clear()
        self.states[:rows].normal_()  # zeros are computed faster
        self.positions[:rows].random_(self._length)
        if not prompts:
            self._lens.fill_(1)
            return
        count = min(prompts, self.sequences)
        ends = (self._each[: count + 1] * self._length).clamp(max=rows)
        self._starts[: count + 1].copy_(ends)
        self._starts[count + 1 :].copy_(ends[-1])
        self._lens[:count].copy_(ends.diff())

    def clear(self) -> None:
        """Null rows of null sequences."""
        for each in (self.states, self.positions, self._starts, self._lens):
            each.zero_()

    def fill_tiles(self, tiles: Tiles) -> None:
        """Write the tiles of a step, and empty tiles after them."""
        self._order[: len(tiles.order)].copy_(tiles.order)
        count = len(tiles.bounds)
        self._bounds[:count].copy_(tiles.bounds)
        self._bounds[count:].zero_()

    def _context(
        self, starts: torch.Tensor, query_lens: tuple[int, ...], rows: int, count: int
    ) -> ForwardContext:
        return ForwardContext(
            query_start=starts,
            context_lens=self._lens[:count],
            block_tables=self._tables[:count],
            slots=self._slots[:rows],
            query_lens=query_lens,
            lens=(self._length,) * max(1, len(query_lens)),  # the most that they can be
            block_size=self._block_size,
        )
