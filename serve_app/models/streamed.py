"""Weights that go from their files to a GPU one by one.

Only the tensors in transit are in the machine's own memory, never the whole model. No file is mapped. A
mapped page that was read counts as this process's memory until the file is closed, and transformers keeps all
files of a model open until the last tensor is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import Final

import torch

from serve_app.codes.pages import pages
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


def streams_to(device: torch.device) -> bool:
    """Whether weights go to `device` one by one. Weights for a CPU stay in the machine's own memory."""
    return device.type != "cpu"


class StreamedTensor:
    """Stands for a tensor where transformers loads a `state_dict`.

    Transformers asks a stored tensor for all of it, `[...]`, and then moves the result to where the model is
    built, which is the CPU. This tensor is read when it is moved, and goes to our device instead.
    """

    def __init__(self, stored: StoredTensor, device: torch.device) -> None:
        self._stored = stored
        self._device = device

    def __getitem__(self, whole: EllipsisType) -> StreamedTensor:
        return self

    def to(self, device: object = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor on our device, whatever `device` is. Raises OSError if the file is shorter than its
        header says."""
        # The device does the cast; a CPU would take longer to cast than to read.
        return read_tensor(self._stored).to(self._device).to(dtype)


def streamed_tensors(folder: Path, device: torch.device) -> dict[str, StreamedTensor]:
    """A `state_dict` of the model in `folder` for transformers' `from_pretrained`; reads only headers.

    Raises OSError or ValueError for files that are damaged, or that contain numbers of another type.
    """
    stored = stored_tensors(folder)
    if strange := sorted({tensor.dtype for tensor in stored} - set(TYPES)):
        raise ValueError(f"tensors of type {strange[0]} are not read here")
    return {tensor.name: StreamedTensor(tensor, device) for tensor in stored}


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
