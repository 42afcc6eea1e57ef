"""The header of a GGUF file: settings by name, and where the bytes of each tensor lie. Does not use torch.

Every length in a header is compared with what is left of the file before anything is read by it, so that a
damaged file costs neither memory nor time.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from serve_app.models.gguf.types import OTHERS, TYPES, NumberType

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)  # version 1 had counts of 32 bits
_ALIGNMENT: Final = 32  # of tensors, in a file that does not say
_MOST_DIMENSIONS: Final = 4
_STRING: Final = 8
_ARRAY: Final = 9
_NUMBERS: Final[Mapping[int, str]] = {
    **dict(enumerate("BbHhIif?")),
    **dict(enumerate("Qqd", 10)),
}
_LEAST_SETTING: Final = 8 + 4 + 1  # bytes: the length of a name, a type, a value
_LEAST_TENSOR: Final = 8 + 4 + 8 + 4 + 8  # the length of a name, a count, a dimension, a type, an offset


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file."""

    name: str
    type: NumberType
    shape: tuple[int, ...]  # rows before columns
    path: Path
    start: int  # of its bytes in the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself."""

    path: Path
    settings: Mapping[str, Any]  # numbers, texts, and lists of one of them
    tensors: tuple[TensorEntry, ...]


def read_header(path: Path) -> Header:
    """The header of the file `path`. Raises OSError, or ValueError with the reason if the file is damaged."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path} is no GGUF file: it does not begin with {_MAGIC.decode()}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(path, data, len(_MAGIC)).header()


class _Cursor:
    """Reads a file from its beginning onwards."""

    def __init__(self, path: Path, data: mmap.mmap, place: int) -> None:
        self.path = path
        self.data = data
        self.place = place
        self.end = len(data)

    def header(self) -> Header:
        version = self.number("I")
        if version not in _VERSIONS:
            other = struct.unpack("<I", struct.pack(">I", version))[0] in _VERSIONS
            why = "its numbers have the other byte order" if other else f"its version is {version}"
            raise ValueError(f"{self.path} is not read here: {why}, not {' or '.join(map(str, _VERSIONS))}")
        num_tensors, num_settings = self.number("Q"), self.number("Q")
        self._room(num_settings, _LEAST_SETTING, "settings")
        settings: dict[str, Any] = {}
        for _ in range(num_settings):
            name = self.text()
            if name in settings:
                raise ValueError(f"{self.path} has the setting {name} twice")
            settings[name] = self.value(self.number("I"), name)
        self._room(num_tensors, _LEAST_TENSOR, "tensors")
        entries = [self._entry() for _ in range(num_tensors)]
        alignment = settings.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"{self.path}: general.alignment is {alignment!r}, no power of two")
        begin = -(-self.place // alignment) * alignment
        tensors: dict[str, TensorEntry] = {}
        for name, kind, shape, offset in entries:
            size = math.prod(shape) // kind.numbers * kind.num_bytes
            if name in tensors:
                raise ValueError(f"{self.path} has the tensor {name} twice")
            if offset % alignment:
                raise ValueError(f"{self.path}: {name} begins at {offset}, no multiple of {alignment}")
            if begin + offset + size > self.end:
                raise ValueError(f"{self.path} ends within {name}; it is incomplete")
            tensors[name] = TensorEntry(name, kind, shape, self.path, begin + offset, size)
        return Header(self.path, settings, tuple(tensors.values()))

    def _entry(self) -> tuple[str, NumberType, tuple[int, ...], int]:
        name = self.text()
        count = self.number("I")
        if not 1 <= count <= _MOST_DIMENSIONS:
            raise ValueError(f"{self.path}: {name} has {count} dimensions")
        shape = tuple(self.number("Q") for _ in range(count))[::-1]
        kind, offset = self.number("I"), self.number("Q")
        if kind not in TYPES:
            known = ", ".join(each.name for each in TYPES.values())
            raise ValueError(
                f"{self.path}: {name} is of type {OTHERS.get(kind, kind)}, which is not read here; choose a "
                f"file with the types {known}"
            )
        if min(shape) < 1 or math.prod(shape) >= 2**63:
            raise ValueError(f"{self.path}: {name} has the impossible shape {list(shape)}")
        if shape[-1] % TYPES[kind].numbers:
            raise ValueError(
                f"{self.path}: {name} has {shape[-1]} columns, which blocks of {TYPES[kind].numbers} of its "
                f"type {TYPES[kind].name} do not divide"
            )
        return name, TYPES[kind], shape, offset

    def value(self, kind: int, name: str) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise ValueError(f"{self.path}: the setting {name} is of the unknown type {kind}")
        kind, count = self.number("I"), self.number("Q")
        if kind in _NUMBERS:
            self._room(count, struct.calcsize(f"<{_NUMBERS[kind]}"), name)
            form = f"<{count}{_NUMBERS[kind]}"
            found = list(struct.unpack_from(form, self.data, self.place))
            self.place += struct.calcsize(form)
            return found
        if kind != _STRING:
            raise ValueError(f"{self.path}: the setting {name} is a list of the unknown type {kind}")
        return self.texts(count, name)

    def number(self, form: str) -> Any:
        size = struct.calcsize(f"<{form}")
        self._room(1, size, "numbers")
        (found,) = struct.unpack_from(f"<{form}", self.data, self.place)
        self.place += size
        return found

    def text(self) -> str:
        size = self.number("Q")
        self._room(size, 1, "letters")
        begin, self.place = self.place, self.place + size
        try:
            return self.data[begin : self.place].decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path} has a text at {begin} that is not UTF-8") from error

    def texts(self, count: int, name: str) -> list[str]:
        """A vocabulary has hundreds of thousands."""
        self._room(count, 8, name)
        unpack, data, place = struct.Struct("<Q").unpack_from, self.data, self.place
        found = []
        try:
            for _ in range(count):
                (size,) = unpack(data, place)
                begin, place = place + 8, place + 8 + size
                if place > self.end:
                    raise ValueError(f"{self.path} ends within {name}; it is incomplete")
                found.append(data[begin:place].decode("utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            raise ValueError(f"{self.path}: the setting {name} is damaged ({error})") from error
        self.place = place
        return found

    def _room(self, count: int, size: int, what: str) -> None:
        """Raise ValueError unless `count` things of `size` bytes can follow in the file."""
        if count * size > self.end - self.place:
            raise ValueError(f"{self.path} ends too early: {count} {what} do not fit; it is incomplete")
