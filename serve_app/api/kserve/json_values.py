"""Tensors as JSON values: row-major lists, nested or flat, in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from serve_app.api.kserve.datatype import (
    BF16,
    BYTES,
    ELEMENTS,
    booleans,
    checked_shape,
    strings,
    tensor_of,
    tensor_of_strings,
)
from serve_app.api.protocol.fields import as_integer
from serve_app.errors import InvalidField
from serve_app.limits import MAX_JSON_NUMBERS
from serve_app.types import Tensor

_LARGEST: Final = {"FP16": 65_504.0, "FP32": 3.4028235677973362e38, "FP64": math.inf}  # rounded: finite
_MOST_DIGITS: Final = 9  # decimal digits that identify an FP32
_AT_ONCE: Final = 2**14  # numbers that are written in one go
_EXACT_POWER: Final = 22  # 10 ** 22 is the largest power of ten that is exact in FP64


def tensor_from_json(name: str, datatype: object, shape: Sequence[object], data: object) -> Tensor:
    """The tensor given by a JSON value. Raises InvalidField, which names the tensor."""
    if datatype == BF16:
        raise InvalidField(name, "BF16 has no form in JSON; send it as binary data")
    if not isinstance(datatype, str) or (datatype not in ELEMENTS and datatype != BYTES):
        raise InvalidField(name, f"datatype must be one of: {', '.join((*ELEMENTS, BYTES))}")
    sizes = checked_shape(name, shape)
    values = flat(data) if isinstance(data, list) else [data]
    if len(values) != math.prod(sizes):
        raise InvalidField(name, f"the shape has {math.prod(sizes)} elements, but data holds {len(values)}")
    return encoded(name, datatype, sizes, values)


def encoded(name: str, datatype: str, shape: tuple[int, ...], values: list[Any]) -> Tensor:
    """`values` as elements of `datatype`; their number fits `shape`. Raises InvalidField."""
    kinds = set(map(type, values))
    if datatype == BYTES:
        if not kinds <= {str}:
            raise InvalidField(name, "data must hold strings")
        return tensor_of_strings(values, shape)
    if datatype == "BOOL":
        if not kinds <= {bool}:
            raise InvalidField(name, "data must hold true or false")
        return tensor_of(datatype, values, shape)
    if datatype in _LARGEST:
        most = _LARGEST[datatype]  # -inf is left to the reader of the tensor
        if not kinds <= {int, float} or not all(
            -most <= value <= most or value == -math.inf for value in values
        ):
            raise InvalidField(name, f"data must hold finite numbers of {datatype}'s range")
        try:
            return tensor_of(datatype, [float(value) for value in values], shape)
        except OverflowError:  # an integer beyond FP64
            raise InvalidField(name, f"data must hold finite numbers of {datatype}'s range") from None
    bounds = np.iinfo(ELEMENTS[datatype])
    numbers: list[Any] = values if kinds <= {int} else [as_integer(value) for value in values]
    if not all(number is not None and bounds.min <= number <= bounds.max for number in numbers):
        raise InvalidField(name, f"data must hold integers from {bounds.min} to {bounds.max}")
    return tensor_of(datatype, numbers, shape)


def flat(data: list[Any]) -> list[Any]:
    """The elements of a possibly nested list, in order."""
    while any(type(item) is list for item in data):
        data = [inner for item in data for inner in (item if type(item) is list else [item])]
    return data


def shape_of(value: object) -> tuple[int, ...]:
    """The shape of a nested list, judged by its first elements; () for a bare element."""
    sizes: list[int] = []
    while isinstance(value, list):
        sizes.append(len(value))
        value = value[0] if value else None
    return tuple(sizes)


def to_json(name: str, tensor: Tensor) -> msgspec.Raw:
    """The elements of a tensor of ours as a flat JSON list. Raises InvalidField for too many elements."""
    if tensor.dtype == BYTES:
        return msgspec.Raw(msgspec.json.encode(strings(name, tensor)))
    if tensor.dtype == "BOOL":
        return msgspec.Raw(msgspec.json.encode(booleans(name, tensor)))
    numbers = np.frombuffer(tensor.data, ELEMENTS[tensor.dtype])
    if numbers.size > MAX_JSON_NUMBERS:
        raise InvalidField(
            name, f"has {numbers.size} numbers, and JSON may have {MAX_JSON_NUMBERS}; ask for binary_data"
        )
    # In pieces, between which other threads get their turn.
    parts = (numbers[start : start + _AT_ONCE] for start in range(0, numbers.size, _AT_ONCE))
    return msgspec.Raw(b"[" + b",".join(_listed(part)[1:-1] for part in parts) + b"]")


def single_to_json(name: str, tensor: Tensor) -> msgspec.Raw:
    """As `to_json`, but a single element is written without a list."""
    listed = to_json(name, tensor)
    return msgspec.Raw(bytes(listed)[1:-1]) if math.prod(tensor.shape) == 1 else listed


def _listed(numbers: npt.NDArray[Any]) -> bytes:
    values = _shortest(numbers) if numbers.dtype == np.float32 else numbers.tolist()
    return msgspec.json.encode(values)


def _shortest(numbers: npt.NDArray[np.float32]) -> list[float]:
    """FP64 values that print as briefly as the FP32 values: -0.41 and not -0.4099999964237213.

    If powers of ten are not exact (below about 1e-13, above 1e22), the exact value is used instead.
    """
    exact = numbers.astype(np.float64)
    found = exact.copy()
    with np.errstate(divide="ignore"):
        exponents = np.floor(np.log10(np.abs(exact)))
    open_ = np.isfinite(exponents)  # zero is as short as it gets
    for digits in range(1, _MOST_DIGITS + 1):
        places = np.clip(digits - 1 - np.where(open_, exponents, 0), -_EXACT_POWER, _EXACT_POWER)
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        short = np.rint(exact * up / down) / up * down
        fits = open_ & (short.astype(np.float32) == numbers)
        found[fits] = short[fits]
        open_ &= ~fits
    values: list[float] = found.tolist()
    return values
