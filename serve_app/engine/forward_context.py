"""Where the sequences of one step lie, in the batch and in the KV cache. Tensors only; no sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(slots=True, frozen=True)
class ForwardContext:
    """Where the S packed sequences of a step are, in the batch and in the cache."""

    query_start: torch.Tensor  # [S+1] int32: sequence s owns rows query_start[s] .. query_start[s+1]-1
    context_lens: torch.Tensor  # [S] int32: tokens in the cache once this step has written its own
    block_tables: torch.Tensor  # [S, max_blocks] int32, padded with 0
    slots: torch.Tensor  # [T] int64: block * block_size + offset, where each row's K and V go
    query_lens: tuple[int, ...]  # the same lengths for Python loops
    lens: tuple[int, ...]
    block_size: int
    # As `query_start` and `query_lens`, of the rows whose outputs are wanted: each sequence's last ones.
    # None: all are.
    wanted_start: torch.Tensor | None = None
    wanted_lens: tuple[int, ...] = ()

    @property
    def num_sequences(self) -> int:
        return len(self.query_lens)

    def of_wanted(self) -> ForwardContext:
        """The same context for the wanted rows only; `slots` still has the slots of all rows."""
        if self.wanted_start is None:
            return self
        start, lens = self.wanted_start, self.wanted_lens
        return replace(self, query_start=start, query_lens=lens, wanted_start=None, wanted_lens=())
