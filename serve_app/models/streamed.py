"""Weights that go from their files to a GPU one by one.

Only the tensors in transit are in the machine's own memory, never the whole model. No file is mapped. A
mapped page that was read counts as this process's memory until the file is closed, and transformers keeps all
files of a model open until the last tensor is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Final

import torch

from serve_app.codes.pages import pages
from serve_app.codes.tensor import CodedTensor
from serve_app.models.errors import ModelLoadError
from serve_app.models.gguf.changes import changed
from serve_app.models.stored import StoredTensor, stored_tensors

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
            return CodedTensor.of(sources, kept, self._device, experts=len(whole.shape) == 3)
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
    folder: Path, device: torch.device, *, late: bool = False, vocabulary: int = 0
) -> dict[str, StreamedTensor]:
    """A `state_dict` of the model in `folder` for transformers' `from_pretrained`; reads only headers.

    `late`: large matrices, but those with a row for each token of the `vocabulary`, stay in their files.
    Raises OSError or ValueError for files that are damaged, or that contain numbers of another type.
    """
    stored = stored_tensors(folder)
    if strange := sorted({tensor.dtype for tensor in stored} - set(TYPES)):
        raise ValueError(f"tensors of type {strange[0]} are not read here")
    return {
        tensor.name: StreamedTensor(tensor, device, late=late and _is_large(tensor, vocabulary))
        for tensor in stored
    }


def _is_large(tensor: StoredTensor, vocabulary: int) -> bool:
    matrix = not tensor.changes and len(tensor.shape) in (2, 3) and min(tensor.shape[-2:]) >= _LEAST_LATE
    return matrix and TYPES[tensor.dtype].is_floating_point and tensor.shape[0] != vocabulary


def read_tensor(stored: StoredTensor) -> torch.Tensor:
    """The tensor, in pages of its own. Raises OSError if the file is shorter than its header says."""
    dtype = TYPES[stored.dtype]
    if not stored.num_bytes:
        return torch.empty(stored.shape, dtype=dtype)
    room = pages(stored.num_bytes)
    with stored.path.open("rb") as file:
        file.seek(stored.start)
        if file.readinto(room) != stored.num_bytes:
            raise OSError(f"{stored.path} ends within {stored.name}")
    return changed(torch.frombuffer(room, dtype=dtype).view(stored.shape), stored.changes)
