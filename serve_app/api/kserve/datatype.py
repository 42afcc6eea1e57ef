"""KServe's datatypes and the elements of their tensors: sizes checked, numbers widened, nothing guessed.

Works on the neutral `Tensor` (raw little-endian bytes), so it is the same for every transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serve_app.errors import InvalidField
from serve_app.types import Tensor

BYTES: Final = "BYTES"  # elements of any length, each after its length in 4 bytes
BF16: Final = "BF16"  # the upper half of an FP32
MAX_RANK: Final = 8

# Datatype -> how numpy reads its elements; BF16 as bare halves.
ELEMENTS: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "BOOL": np.dtype("u1"),
        "INT8": np.dtype("i1"),
        "INT16": np.dtype("<i2"),
        "INT32": np.dtype("<i4"),
        "INT64": np.dtype("<i8"),
        "UINT8": np.dtype("u1"),
        "UINT16": np.dtype("<u2"),
        "UINT32": np.dtype("<u4"),
        "UINT64": np.dtype("<u8"),
        "FP16": np.dtype("<f2"),
        "FP32": np.dtype("<f4"),
        "FP64": np.dtype("<f8"),
        BF16: np.dtype("<u2"),
    }
)

# Wanted datatype -> what may come in its place, where the values fit.
WIDENED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "BOOL": ("BOOL",),
        "INT32": ("INT32", "INT64", "UINT32"),
        "UINT64": ("UINT64", "INT64", "UINT32", "INT32"),
        "FP16": ("FP16", BF16, "FP32"),
        "FP32": ("FP32", "FP16", "FP64", BF16),
        BYTES: (BYTES,),
    }
)


def checked(name: str, datatype: object, shape: Sequence[object], data: bytes) -> Tensor:
    """Make a tensor after checking that its datatype, shape and data fit together. Raises InvalidField, which
    names the tensor."""
    if not isinstance(datatype, str) or (datatype not in ELEMENTS and datatype != BYTES):
        raise InvalidField(name, f"datatype must be one of: {', '.join((*ELEMENTS, BYTES))}")
    sizes = checked_shape(name, shape)
    count = prod(sizes)
    if datatype == BYTES:
        found = sum(1 for _ in _strings(name, data))
        if found != count:
            raise InvalidField(name, f"the shape has {count} elements, but the data holds {found}")
    elif len(data) != count * ELEMENTS[datatype].itemsize:
        wanted = count * ELEMENTS[datatype].itemsize
        raise InvalidField(
            name, f"the shape needs {wanted} bytes of {datatype}, but the data has {len(data)}"
        )
    return Tensor(dtype=datatype, shape=sizes, data=data)


def checked_shape(name: str, shape: Sequence[object]) -> tuple[int, ...]:
    """Check a shape. Raises InvalidField unless `shape` is a list of sizes."""
    sizes = tuple(size for size in shape if type(size) is int and 0 <= size < 2**31)
    if len(sizes) != len(shape) or len(sizes) > MAX_RANK:
        raise InvalidField(name, f"shape must be a list of up to {MAX_RANK} integers from 0 to {2**31 - 1}")
    return sizes


def check_datatype(name: str, tensor: Tensor, wanted: str) -> None:
    """Raises InvalidField unless `tensor` can be used as one of datatype `wanted`."""
    if tensor.dtype not in WIDENED[wanted]:
        raise InvalidField(name, f"datatype must be {' or '.join(WIDENED[wanted])}")


def integers(name: str, tensor: Tensor, low: int, high: int) -> npt.NDArray[Any]:
    """The elements of an integer tensor as a flat array. All elements must be from `low` to `high`. Raises
    InvalidField."""
    numbers = np.frombuffer(tensor.data, ELEMENTS[tensor.dtype])
    # As Python's integers: no type of numpy's holds both an INT64's and a UINT64's.
    if numbers.size and (int(numbers.min()) < low or int(numbers.max()) > high):
        raise InvalidField(name, f"must hold integers from {low} to {high}")
    return numbers


def floats(name: str, tensor: Tensor, *, may_exclude: bool = False) -> npt.NDArray[np.float32]:
    """The elements as a flat FP32 array. Raises InvalidField for numbers that are not finite in FP32.

    `may_exclude`: whether -inf, which means exclusion, is accepted as well.
    """
    numbers = np.frombuffer(tensor.data, ELEMENTS[tensor.dtype])
    if tensor.dtype == BF16:
        numbers = (numbers.astype("<u4") << 16).view("<f4")
    with np.errstate(over="ignore"):
        single = numbers.astype("<f4", copy=False)
    if not (np.isfinite(single) | (may_exclude & (numbers == -np.inf))).all():
        raise InvalidField(name, "must hold finite numbers of FP32's range")
    return single


def booleans(name: str, tensor: Tensor) -> list[bool]:
    """The elements of a BOOL tensor. Raises InvalidField for bytes other than 0 and 1."""
    if any(byte > 1 for byte in tensor.data):
        raise InvalidField(name, "must hold 0 or 1 in each byte")
    return [byte == 1 for byte in tensor.data]


def strings(name: str, tensor: Tensor) -> list[str]:
    """The elements of a BYTES tensor as text. Raises InvalidField unless they are UTF-8."""
    try:
        return [item.decode("utf-8") for item in _strings(name, tensor.data)]
    except UnicodeDecodeError:
        raise InvalidField(name, "must hold UTF-8") from None


def _strings(name: str, data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "little")
        end = start + 4 + size
        if start + 4 > len(data) or end > len(data):
            raise InvalidField(name, "the length before an element reaches beyond the data")
        yield data[start + 4 : end]
        start = end


def tensor_of_strings(items: Sequence[str], shape: tuple[int, ...]) -> Tensor:
    """Text as a BYTES tensor."""
    encoded = [item.encode("utf-8", "replace") for item in items]
    data = b"".join(len(item).to_bytes(4, "little") + item for item in encoded)
    return Tensor(dtype=BYTES, shape=shape, data=data)


def tensor_of(datatype: str, numbers: npt.ArrayLike, shape: tuple[int, ...]) -> Tensor:
    """Numbers as a tensor; the caller has checked that they fit the datatype. `shape` has as many elements as
    `numbers`."""
    array = np.asarray(numbers, ELEMENTS[datatype])
    return Tensor(dtype=datatype, shape=shape, data=array.reshape(shape).tobytes())
