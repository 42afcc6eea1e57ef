"""Tensors of requests and outputs: bytes <-> torch, and the checks of tensors that clients send.

A tensor that passed its check converts without an error. Does not depend on sequences or batches.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Final

import torch

from serve_app.errors import InvalidField
from serve_app.types import Tensor

DTYPES: Final = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}


def to_torch(tensor: Tensor) -> torch.Tensor:
    """The numbers of a checked tensor, on the CPU, read-only where that is possible."""
    if sys.byteorder != "little":
        raise NotImplementedError("tensors cross processes in little-endian order")
    # A copy, since the bytes of a request may not be written to.
    return torch.frombuffer(bytearray(tensor.data), dtype=DTYPES[tensor.dtype]).reshape(tensor.shape)


def row_bytes(logits: torch.Tensor) -> bytes:
    """A row [V] as FP32 bytes."""
    data: bytes = logits.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
    return data


def from_rows(rows: Sequence[bytes]) -> Tensor:
    """One FP32 tensor (R, vocab) from at least one row of bytes, as made by `row_bytes`."""
    return Tensor(dtype="FP32", shape=(len(rows), len(rows[0]) // 4), data=b"".join(rows))


def check(name: str, tensor: Tensor, dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> torch.Tensor:
    """The numbers of `tensor`. Raises InvalidField if the dtype, shape (None: any size) or length is not the
    expected one."""
    if tensor.dtype not in dtypes:
        raise InvalidField(name, f"must be {' or '.join(dtypes)}, not {tensor.dtype[:16]}.", joint=" ")
    fits = len(tensor.shape) == len(shape) and all(
        size > 0 and wanted in (None, size) for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InvalidField(name, f"must have the shape ({wanted}), not {list(tensor.shape)}.", joint=" ")
    size = math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
    if len(tensor.data) != size:
        raise InvalidField(name, f"must have {size} bytes for its shape, not {len(tensor.data)}.", joint=" ")
    return to_torch(tensor)
