"""A recurrence over one matrix per head, as a typed call of the native function."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields

import torch

from serve_app.engine.kernels.structs import RecurrenceStruct


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A token makes a head's matrix decay, adds an outer product with its key, and reads its query's value.

    The outer product is of the key and the value or, with `part`, of the key and this part of the difference
    between the value and what the matrix has for the key. Each group of queries and keys is used by H / G
    heads. All are float32.
    """

    query: torch.Tensor  # [T, G, K]
    key: torch.Tensor  # [T, G, K]
    value: torch.Tensor  # [T, H, V]
    decay: torch.Tensor  # [T, H, 1], or [T, H, K]: a factor for each key
    part: torch.Tensor | None  # [T, H]
    pool: torch.Tensor  # [slots, H, K, V]: the matrices
    out: torch.Tensor  # [T, H, V]: the rows of spans are written

    def run(self, library: ctypes.CDLL, spans: torch.Tensor) -> None:
        """Advance `spans` [4, S] int64: their first rows, lengths, and slots before and after the step.

        Raises ValueError for tensors that do not fit.
        """
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        for each in tensors.values():
            if each is not None and not (
                each.dtype == torch.float32 and each.is_contiguous() and each.is_cpu
            ):
                raise ValueError("a recurrence takes contiguous float32 tensors on a CPU")
        (tokens, heads, values), (_, groups, keys) = self.value.shape, self.key.shape
        decays = self.decay.shape[-1]
        fits = self.query.shape == self.key.shape == (tokens, groups, keys) and heads % groups == 0
        fits = fits and self.out.shape == self.value.shape and self.pool.shape[1:] == (heads, keys, values)
        fits = fits and self.decay.shape == (tokens, heads, decays) and decays in (1, keys)
        if not fits or (self.part is not None and self.part.shape != (tokens, heads)):
            raise ValueError("the tensors of a recurrence do not fit each other")
        if spans.dtype != torch.int64 or not spans.is_contiguous() or len(spans) != 4:
            raise ValueError("spans are [4, S] int64")
        ends = spans[0] + spans[1]
        if int(spans.min()) < 0 or int(ends.max()) > tokens or int(spans[2:].max()) >= len(self.pool):
            raise ValueError("a span lies outside of the batch, or its slots outside of the pool")
        pointers = {name: None if each is None else each.data_ptr() for name, each in tensors.items()}
        sizes = {"heads": heads, "groups": groups, "keys": keys, "values": values, "decays": decays}
        struct = RecurrenceStruct(**pointers, **sizes)
        library.recur(*(ctypes.addressof(struct), spans.data_ptr(), spans.shape[1], torch.get_num_threads()))
