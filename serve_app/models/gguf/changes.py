"""How tensors of a GGUF file differ from those of a checkpoint in transformers' layout, and back.

A change is a name with integers, so that an index of tensors can be text. Rows may be those of numbers or of
blocks, since a block lies within a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import torch

Change: TypeAlias = tuple[str | int, ...]
PAIRED: Final = "paired"  # rows of each head, as rotary positions pair them; the number of heads
MINUS_ONE: Final = "minus one"
LOG: Final = "log"
GROUPED: Final = "grouped"  # rows from a row on; key heads, value heads of each, rows of a head, that row
GROUPED_COLUMNS: Final = "grouped columns"
IN_TURN: Final = "in turn"  # entries of the first half and of the second in turn; the dimension
TRANSPOSED: Final = "transposed"  # rows and columns, the last two dimensions


def changed(tensor: torch.Tensor, changes: Sequence[Change]) -> torch.Tensor:
    """The tensor after `changes`, in their order."""
    for name, *numbers in changes:
        tensor = _CHANGES[str(name)](tensor, *map(int, numbers))
    return tensor


def changes_of_part(
    changes: Sequence[Change], dim: int, size: int, ranges: Sequence[tuple[int, int]]
) -> tuple[Change, ...] | None:
    """The changes that make a part of a tensor, these ranges of a dimension of `size`, from the same part of
    the file; None if the part's numbers lie elsewhere there."""
    made: list[Change] = []
    for name, *numbers in changes:
        if name == PAIRED and dim == 0:
            head = size // int(numbers[0])
            if any(start % head or end % head for start, end in ranges):
                return None
            made.append((PAIRED, sum(end - start for start, end in ranges) // head))
        elif (name, dim) in ((GROUPED, 0), (GROUPED_COLUMNS, 1)) or name in (IN_TURN, TRANSPOSED):
            return None
        else:
            made.append((name, *numbers))
    return tuple(made)


def _paired(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates rows 2i and 2i + 1 of a head together, transformers i and i + half a head."""
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _grouped(tensor: torch.Tensor, keys: int, values: int, rows: int, start: int) -> torch.Tensor:
    """llama.cpp has the first value head of every key head, then the second ones, and so on."""
    import torch

    after = tensor[start:]
    groups = after.reshape(values, keys, rows, *tensor.shape[1:]).transpose(0, 1)
    return torch.cat((tensor[:start], groups.reshape(after.shape)))


def column_order(changes: Sequence[Change]) -> torch.Tensor | None:
    """For each column of the matrix, which column of the file it is; None: it is the same one."""
    import torch

    for name, *numbers in changes:
        if name == GROUPED_COLUMNS:
            keys, values, rows = map(int, numbers)
            return _grouped(torch.arange(keys * values * rows), keys, values, rows, 0)
    return None


def _in_turn(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    before, after = tensor.shape[:dim], tensor.shape[dim + 1 :]
    halves = tensor.reshape(*before, 2, -1, *after)
    return halves.transpose(dim, dim + 1).reshape(tensor.shape)


def _grouped_columns(tensor: torch.Tensor, keys: int, values: int, rows: int) -> torch.Tensor:
    return _grouped(tensor.T, keys, values, rows, 0).T.contiguous()


_CHANGES: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    PAIRED: _paired,
    MINUS_ONE: lambda tensor: tensor.float() - 1,
    LOG: lambda tensor: (-tensor.float()).log(),
    GROUPED: _grouped,
    GROUPED_COLUMNS: _grouped_columns,
    IN_TURN: _in_turn,
    TRANSPOSED: lambda tensor: tensor.mT.contiguous(),
}
