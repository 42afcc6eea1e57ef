"""What a reader of a format is, and what it finds in headers: the tensors of one quantised matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from serve_app.codes.matrix import piece_of
from serve_app.config.quantization import GPU
from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.share import Layout, Region, Unpack, UnpackPart, whole_units, within
from serve_app.models.split.cut import Cut
from serve_app.models.stored import StoredTensor

Stored = Mapping[str, StoredTensor]  # by name
FLOATS: Final = ("F16", "BF16", "F32")  # of scales
LEAST_GROUP: Final = 16  # columns of the smallest group with a product
WIDE_GROUP: Final = 32  # the smallest group of codes of more than four bits with a product on a GPU


@dataclass(frozen=True, slots=True)
class Scheme:
    """What decides how a device keeps codes."""

    bits: int  # of a code
    scales: int
    minimums: bool = False  # beside the scales
    table: bool = False  # codes are places in a table of values


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A weight of the model that a checkpoint holds as several tensors."""

    name: str  # of the weight, as a checkpoint that is not quantised has it
    shape: tuple[int, int]  # of the matrix, or of one expert's
    parts: Stored  # by the names that `unpack` uses; with the experts as their first dimension, if any
    unpack: Unpack  # of one matrix
    # Where the rows of a matrix, and its columns, lie in `parts`; empty: they cannot be read apart.
    rows: Layout = field(default_factory=dict)
    columns: Layout = field(default_factory=dict)
    transposed: bool = False  # the model's weight has the columns of the matrix first
    experts: int | None = None
    scheme: Scheme | None = None  # of codes that lie in one tensor with their scales
    group: int = 0  # columns with one scale, as far as that is known without `columns`; 0: it is not

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Of the weight in the model."""
        shape = self.shape[::-1] if self.transposed else self.shape
        return shape if self.experts is None else (self.experts, *shape)

    def part(self, cut: Cut) -> PackedTensor:
        """A part of the weight. `cut`: of the weight in the model."""
        lead = 0 if self.experts is None else 1
        if cut.dim < lead:
            parts = {role: each.part(cut) for role, each in self.parts.items()}
            return replace(self, parts=parts, experts=cut.size)
        axis = (cut.dim - lead) ^ self.transposed
        layout, size = (self.rows, self.columns)[axis], self.shape[axis]
        read = whole_units(layout, cut.ranges, size)
        parts = {
            role: each.part(layout[role].of(read, each, lead)) if role in layout else each
            for role, each in self.parts.items()
        }
        whole = Region.of(self.shape)
        region = Region(read, whole.columns) if axis == 0 else Region(whole.rows, read)
        unpack = UnpackPart(self.unpack, region, axis, within(cut.ranges, read), cut.size)
        scheme = self.scheme and replace(self.scheme, scales=self.scheme.scales * cut.size // size)
        shape = (cut.size, self.shape[1]) if axis == 0 else (self.shape[0], cut.size)
        group = self.group
        if axis == 1:
            scales = layout.get("scales") or layout.get("blocks")
            group = piece_of(group if scales is None else scales.numbers, cut.ranges)
        return replace(self, shape=shape, parts=parts, unpack=unpack, scheme=scheme, group=group)

    def converted(self, dtype: str, item_bytes: int) -> StoredTensor:
        """The header of the weight in plain numbers; its bytes are nowhere."""
        shape = self.full_shape
        return StoredTensor(self.name, dtype, shape, Path(), 0, math.prod(shape) * item_bytes)

    def kept(self, device: str) -> StoredTensor | None:
        """The header of the weight as `device` keeps it for products over its codes, whose bytes are nowhere;
        None if there is no such product.

        Integers have four or eight bits each, and for each group at most a scale of four bytes, a zero of one
        and, if the format has minimums, one of four. Of formats that keep scales in tensors of their own, a
        GPU keeps about what is stored.
        """
        if "values" in self.parts:  # codes are places in the checkpoint's own table: NF4 and FP4
            return None
        if self.group % LEAST_GROUP and self.group < self.shape[1]:
            return None
        count, scheme = math.prod(self.full_shape), self.scheme
        if scheme is None and device == GPU:
            size = sum(part.num_bytes for part in self.parts.values())
            return StoredTensor(self.name, "U8", self.full_shape, Path(), 0, size)
        scheme = scheme or self._scheme_of_parts()
        if scheme is None:
            return None
        narrow, alone = scheme.bits <= 4, scheme.table or scheme.minimums
        if device == GPU and (alone or (not narrow and count // scheme.scales < WIDE_GROUP)):
            return None
        scales = count // self.group if self.group else scheme.scales
        size = count * (4 if narrow else 8) // 8 + (9 if scheme.minimums else 5) * scales
        return StoredTensor(self.name, "U8", self.full_shape, Path(), 0, size)

    def _scheme_of_parts(self) -> Scheme | None:
        """The scheme of integers that lie in a tensor of their own; None for other codes."""
        codes, scales = self.parts.get("codes") or self.parts.get("blocks"), self.parts.get("scales")
        if codes is None or scales is None or codes.dtype.startswith("F"):
            return None
        return Scheme(round(codes.num_bytes * 8 / math.prod(self.full_shape)), scales.num_values)


class Reader(Protocol):
    """Reads one format, with the settings of one checkpoint."""

    @property
    def label(self) -> str:
        """The format and its settings, for the operator."""
        ...

    @property
    def endings(self) -> tuple[str, ...]:
        """How names of tensors end that mean nothing without codes: scales, zeros and the like."""
        ...

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        """The weight whose codes are the tensor `name`; None if that tensor has no codes of this format.

        Raises ModelLoadError, with the tensor's name and the reason, if parts are missing or do not match.
        """
        ...


def refused(name: str, reason: str) -> ModelLoadError:
    """The error for the tensor `name`."""
    return ModelLoadError(f"the tensor {name} cannot be converted: {reason}")


def need(stored: Stored, name: str, dtypes: Sequence[str], owner: str) -> StoredTensor:
    """The tensor `name`, a part of the weight whose codes are `owner`, in one of `dtypes`."""
    if name not in stored:
        raise refused(owner, f"{name} is missing; fetch the model again")
    if stored[name].dtype not in dtypes:
        raise refused(name, f"it is of type {stored[name].dtype}, not {' or '.join(dtypes)}")
    return stored[name]


def check_shape(tensor: StoredTensor, *allowed: tuple[int, ...]) -> None:
    """Raise ModelLoadError unless the shape of `tensor` is one of `allowed`."""
    if tensor.shape not in allowed:
        wanted = " or ".join(str(list(each)) for each in dict.fromkeys(allowed))
        raise refused(tensor.name, f"its shape is {list(tensor.shape)}, not {wanted}")


def groups_of(columns: int, size: int, owner: str) -> int:
    """The number of groups of `size` columns; -1: one group. Raises ModelLoadError if a column is left."""
    if size == -1:
        return 1
    if size < 1 or columns % size:
        raise refused(owner, f"groups of {size} do not divide its {columns} columns")
    return columns // size


def group_size(value: Any) -> int:
    """The setting `group_size` of a checkpoint: columns that share a scale; -1: all of them.

    Raises ModelLoadError.
    """
    if type(value) is not int or (value < 1 and value != -1):
        raise ModelLoadError(f"quantization_config: group_size {value!r} is no size of a group")
    return value


def group_label(size: int) -> str:
    """A group size, for the operator."""
    return "a group for each row" if size == -1 else f"groups of {size}"
