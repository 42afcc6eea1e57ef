"""Weights that go from their files to a device one by one, at once or when they are used.

Only the tensors in transit are in the machine's own memory, never the whole model. No file is mapped. A
mapped page that was read counts as this process's memory until the file is closed, and transformers keeps all
files of a model open until the last tensor is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import Final

import torch

from serve_app.codes.pages import new_tensor
from serve_app.codes.tensor import CodedTensor
from serve_app.models.errors import ModelLoadError
from serve_app.models.gguf.changes import changed
from serve_app.models.stored import StoredTensor

TYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


_LEAST_LATE: Final = 64  # rows and columns of a matrix that stays in its file


def streams_to(device: torch.device) -> bool:
    """Whether weights go to `device` one by one. Weights for a CPU stay in the machine's own memory."""
    return device.type != "cpu"


class StreamedTensor:
    """Stands for a tensor where transformers loads a `state_dict`.

    Transformers asks a stored tensor for all of it, `[...]`, and then moves the result to where the model is
    built, which is the CPU. This tensor is read when it is moved, and goes to our device instead.
    """

    def __init__(self, stored: StoredTensor, device: torch.device, *, late: bool = False) -> None:
        """`late`: the result is a CodedTensor, whose numbers stay in the file until they are used."""
        self._stored = stored
        self._device = device
        self._late = late

    def __getitem__(self, whole: EllipsisType) -> StreamedTensor:
        return self

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor on our device, whatever `device` is. Raises OSError if the file is shorter than its
        header says."""
        if self._late:
            whole = self._stored
            parts = (
                [whole] if len(whole.shape) == 2 else [whole.entry(each) for each in range(whole.shape[0])]
            )
            sources = [StoredNumbers(each, self._device) for each in parts]
            kept = dtype or TYPES[whole.dtype]
            return CodedTensor.of(sources, kept, self._device, experts=len(whole.shape) == 3, coded=False)
        # The device does the cast; a CPU would take longer to cast than to read.
        return read_tensor(self._stored).to(self._device).to(dtype)


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """A plain matrix in its file, as a `Source`."""

    stored: StoredTensor
    device: torch.device

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.stored.shape
        return rows, columns

    def codes(self) -> None:
        """It has none."""

    def write_to(self, out: torch.Tensor) -> None:
        """As `Source`. Raises OSError as `read_tensor`, and ModelLoadError for NaN and infinity."""
        numbers = read_tensor(self.stored).to(self.device)
        if not torch.stack(torch.aminmax(numbers)).isfinite().all():
            raise ModelLoadError(f"the tensor {self.stored.name} holds numbers that are not finite")
        out.copy_(numbers)


def streamed_tensors(
    stored: Iterable[StoredTensor], device: torch.device, *, late: bool = False, vocabulary: int = 0
) -> dict[str, StreamedTensor]:
    """A `state_dict` of these tensors for transformers' `from_pretrained`.

    `late`: large matrices, but those with a row for each token of the `vocabulary`, stay in their files.
    Raises ValueError for numbers of another type.
    """
    stored = list(stored)
    if strange := sorted({tensor.dtype for tensor in stored} - set(TYPES)):
        raise ValueError(f"tensors of type {strange[0]} are not read here")
    return {
        tensor.name: StreamedTensor(tensor, device, late=late and _is_large(tensor, vocabulary))
        for tensor in stored
    }


def _is_large(tensor: StoredTensor, vocabulary: int) -> bool:
    if tensor.changes or tensor.pieces:
        return False
    matrix = len(tensor.shape) in (2, 3) and min(tensor.shape[-2:]) >= _LEAST_LATE
    return matrix and TYPES[tensor.dtype].is_floating_point and tensor.shape[0] != vocabulary


def read_tensor(stored: StoredTensor) -> torch.Tensor:
    """The tensor, in pages of its own. Raises OSError if the file is shorter than its header says."""
    cut, whole = stored.cut, stored.whole
    if cut is not None and whole is not None and (whole.changes or whole.cut or whole.pieces):
        return changed(cut.of(read_tensor(whole)), stored.changes)
    if stored.pieces:
        first = stored.pieces[0].shape
        dim = next(dim for dim, size in enumerate(stored.shape) if size != first[dim])
        return changed(torch.cat([read_tensor(each) for each in stored.pieces], dim), stored.changes)
    tensor = new_tensor(stored.shape, TYPES[stored.dtype], torch.device("cpu"))
    if tensor.nbytes != stored.num_bytes:
        raise ValueError(f"{stored.name} has {stored.num_bytes} bytes, and its shape {tensor.nbytes}")
    if not tensor.nbytes:
        return tensor
    memory = tensor.view(-1).view(torch.uint8).numpy().data  # pages are zeros where nothing is read
    file = os.open(stored.path, os.O_RDONLY)
    try:
        for at, offset, size in _pieces(stored):
            _read(file, memory[at : at + size], offset, stored)
    finally:
        os.close(file)
    return changed(tensor, stored.changes)


def _pieces(stored: StoredTensor) -> Iterator[tuple[int, int, int]]:
    """The pieces of a tensor in its file: of each its place there, its place in the file, its size."""
    cut, whole = stored.cut, stored.whole
    if cut is None or whole is None:
        yield 0, stored.start, stored.num_bytes
        return
    inner = math.prod(whole.shape[cut.dim + 1 :]) * (whole.num_bytes // whole.num_values)
    for outer in range(math.prod(whole.shape[: cut.dim])):
        at = outer * cut.size * inner
        for start, end in cut.ranges:
            size = (end - start) * inner
            yield at, whole.start + (outer * whole.shape[cut.dim] + start) * inner, size
            at += size


def _read(file: int, into: memoryview, offset: int, stored: StoredTensor) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(file, [into[done:]], offset + done)
        if not count:
            raise OSError(f"{stored.path} ends within {stored.name}")
        done += count
