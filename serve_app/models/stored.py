"""The tensors in a folder's safetensors files, found from their headers alone. Does not use torch.

A header is eight bytes with its size, then JSON: the type, the shape and the place of each tensor's bytes. A
folder that describes files of another format has an index of its own instead.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from serve_app.models.files import ELSEWHERE, INDEX, WEIGHTS, read_json
from serve_app.models.gguf.changes import Change, changes_of_part
from serve_app.models.split.cut import Cut, CutOf

_MAX_HEADER_BYTES: Final = 100 * 2**20  # as safetensors bounds it


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor, and where its bytes lie."""

    name: str
    dtype: str  # in safetensors' words, such as BF16
    shape: tuple[int, ...]
    path: Path
    start: int  # of its bytes in the file
    num_bytes: int
    changes: tuple[Change, ...] = ()  # after it is read; see gguf/changes.py
    pieces: tuple[StoredTensor, ...] = ()  # of which it is put together along a dimension; it has no place
    cut: Cut | None = None  # what it is of the tensor `whole`; None: it lies in the file as it is
    whole: StoredTensor | None = None

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    def entry(self, number: int, name: str | None = None) -> StoredTensor:
        """The entry `number` of the first dimension, with a name of its own if it has one."""
        if self.cut is not None and self.whole is not None:
            if self.cut.dim == 0:
                return self.whole.entry(self.cut.place(number), name)
            return self.whole.entry(number, name).part(replace(self.cut, dim=self.cut.dim - 1))
        size, start = self.num_bytes // self.shape[0], self.start
        return replace(
            self,
            name=name or self.name,
            shape=self.shape[1:],
            start=start + number * size,
            num_bytes=size,
            pieces=tuple(each.entry(number) for each in self.pieces),
        )

    def part(self, cut: Cut) -> StoredTensor:
        """A part of the tensor, whose bytes alone are read, unless they lie apart in the file."""
        shape = cut.shape(self.shape)
        size = self.num_bytes * math.prod(shape) // max(1, self.num_values)
        changes = changes_of_part(self.changes, cut.dim, self.shape[cut.dim], cut.ranges)
        if changes is None or self.pieces:  # they need all of it
            return replace(self, shape=shape, num_bytes=size, changes=(), pieces=(), cut=cut, whole=self)
        plain = replace(self, changes=())
        return replace(self, shape=shape, num_bytes=size, changes=changes, cut=cut, whole=plain)

    def data(self) -> bytes:
        """The bytes of a small tensor. Raises OSError if the file ends too early."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            data = file.read(self.num_bytes)
        if len(data) != self.num_bytes:
            raise OSError(f"{self.path} ends within {self.name}")
        return data

    def integers(self) -> tuple[int, ...]:
        """The numbers of a small tensor of I32 or I64. Raises OSError as `data`, and ValueError if there are
        more or fewer bytes."""
        size = 8 if self.dtype == "I64" else 4
        if self.num_bytes != size * self.num_values:
            raise ValueError(f"{self.name} has {self.num_bytes} bytes for {self.num_values} numbers")
        return struct.unpack(f"<{self.num_values}{'q' if size == 8 else 'i'}", self.data())


def stored_tensors(folder: Path) -> list[StoredTensor]:
    """All tensors of the model in `folder`. Raises OSError or ValueError for files that are damaged."""
    if (folder / ELSEWHERE).is_file():
        return list(_elsewhere(json.loads((folder / ELSEWHERE).read_text("utf-8"))))
    paths = [folder / WEIGHTS]
    if not paths[0].is_file():
        names: set[str] = set(read_json(folder / INDEX)["weight_map"].values())
        paths = [folder / name for name in sorted(names)]
    return [tensor for path in paths for tensor in tensors_of(path)]


def parts_of(tensors: Iterable[StoredTensor], cut_of: CutOf) -> Iterator[StoredTensor]:
    """What a rank reads of each tensor."""
    for each in tensors:
        cut = cut_of(each.name, each.shape)
        yield each if cut is None else each.part(cut)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of the model in `folder`."""
    if (folder / ELSEWHERE).is_file():
        found = stored_tensors(folder)
        return sorted({part.path for each in found for part in (each.pieces or (each,))})
    return sorted(folder.glob("*.safetensors"))


def tensors_of(path: Path) -> Iterator[StoredTensor]:
    """The tensors of one file. Raises OSError or ValueError like `stored_tensors`."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= _MAX_HEADER_BYTES:
            raise ValueError(f"{path} is no safetensors file")
        header: dict[str, Any] = json.loads(file.read(size))
    end_of_file = path.stat().st_size
    try:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + int(offset) for offset in entry["data_offsets"])
            if not begin <= end <= end_of_file:
                raise ValueError(f"{path} ends within {name}")
            yield StoredTensor(name, entry["dtype"], tuple(entry["shape"]), path, begin, end - begin)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} has a header that is not valid") from error


def index_of(tensors: Iterable[StoredTensor]) -> list[list[Any]]:
    """The contents of an index."""
    return [
        [
            *(each.name, each.dtype, each.shape, str(each.path), each.start, each.num_bytes, each.changes),
            index_of(each.pieces),
        ]
        for each in tensors
    ]


def _elsewhere(index: Iterable[Any]) -> Iterator[StoredTensor]:
    for name, dtype, shape, path, start, size, changes, pieces in index:
        yield StoredTensor(
            *(name, dtype, tuple(shape), Path(path), start, size),
            changes=tuple(tuple(each) for each in changes),
            pieces=tuple(_elsewhere(pieces)),
        )
