"""Functions over spans of a batch's rows, each from the states in one slot to those in another."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans that do not depend on each other."""

    table: torch.Tensor  # [4, S] int64: first rows, lengths, slots before and slots after
    rows: int  # that a batch needs at least
    slots: int  # that a pool needs at least
    tokens: int  # in all spans

    @classmethod
    def of(cls, spans: Sequence[tuple[int, int, int, int]], table: torch.Tensor | None = None) -> Spans:
        """`table`: the same spans as a tensor. Raises ValueError for a negative number."""
        if min(map(min, spans)) < 0:
            raise ValueError("a span lies outside of the batch, or its slots outside of the pool")
        if table is None:
            table = torch.tensor(spans).T.contiguous()
        rows = max(first + length for first, length, _, _ in spans)
        slots = 1 + max(max(span[2:]) for span in spans)
        return cls(table, rows, slots, sum(length for _, length, _, _ in spans))


class SpanFunction(ABC):
    """A native function with a state, and its arguments."""

    __slots__ = ()
    name: ClassVar[str]
    struct: ClassVar[type[ctypes.Structure]]
    out: torch.Tensor  # [T, ...]: the rows of spans are written
    pool: torch.Tensor  # [slots, ...]

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor | None]:
        """The tensors by the names of the struct's fields."""

    @abstractmethod
    def sizes(self) -> dict[str, float] | None:
        """The other fields of the struct; None for tensors that do not fit each other."""

    def run(self, library: ctypes.CDLL, spans: Spans) -> None:
        """Advance all spans. Raises ValueError for tensors that do not fit each other or the spans."""
        sizes = self.sizes()
        if sizes is None or spans.rows > len(self.out) or spans.slots > len(self.pool):
            raise ValueError(f"the arguments of {self.name} do not fit each other, or the spans")
        pointers = {name: None if each is None else each.data_ptr() for name, each in self.tensors().items()}
        struct, function = self.struct(**pointers, **sizes), getattr(library, self.name)
        table = spans.table
        function(ctypes.addressof(struct), table.data_ptr(), table.shape[1], torch.get_num_threads())


def fits(tensor: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> bool:
    """Whether a native function can read such a tensor, or need not."""
    return tensor is None or (
        tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous() and tensor.is_cpu
    )
