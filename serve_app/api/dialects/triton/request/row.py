"""The tensors of one prompt, read by the table of inputs: shapes, datatypes, ranges, defaults.

A scalar may have the shape [], [1] or [1, 1]. A vector and a table may have a leading dimension of 1.
Every error names the tensor as the client called it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from serve_app.api.dialects.triton.request.inputs import ACCEPTED, RENAMED, TEXT_INPUT, Input, Rank
from serve_app.api.kserve.datatype import booleans, check_datatype, floats, integers, strings
from serve_app.errors import InvalidField
from serve_app.types import Tensor

MAX_SCALAR_RANK: Final = 2


class BatchRow:
    """Reads tensors by name. An absent tensor is read as its default."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        names: Mapping[str, str] | None = None,
        table: Mapping[str, Input] = ACCEPTED,
    ) -> None:
        """`tensors` are named as in `table`. `names`: names in the table -> the client's other names."""
        self._tensors = tensors
        self._names = names or {}
        self._table = table

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def client_name(self, name: str) -> str:
        """The client's name for a tensor."""
        return self._names.get(name, name)

    def refused(self, name: str, reason: str) -> InvalidField:
        """An error about one tensor."""
        return InvalidField(self.client_name(name), reason)

    def flag(self, name: str) -> bool:
        """Raises InvalidField."""
        found = self.choice(name)
        return bool(self._table[name].default) if found is None else found

    def choice(self, name: str) -> bool | None:
        """A flag; None: it is absent. Raises InvalidField."""
        tensor = self._scalar(name)
        return None if tensor is None else booleans(self.client_name(name), tensor)[0]

    def integer(self, name: str) -> int | None:
        """Raises InvalidField."""
        spec, tensor = self._table[name], self._scalar(name)
        if tensor is None:
            return None if spec.default is None else int(spec.default)
        value = int(integers(self.client_name(name), tensor, -(2**63), 2**64)[0])
        if not spec.low <= value <= spec.high:
            raise self.refused(name, f"must be an integer from {spec.low} to {spec.high}")
        return value

    def number(self, name: str) -> float | None:
        """Raises InvalidField."""
        spec, tensor = self._table[name], self._scalar(name)
        if tensor is None:
            return None if spec.default is None else float(spec.default)
        single = floats(self.client_name(name), tensor)
        # The shortest decimal of the FP32 is most likely what the client wrote: 0.1.
        value = float(np.frombuffer(tensor.data, "<f8")[0] if tensor.dtype == "FP64" else str(single[0]))
        if not spec.low <= value <= spec.high or (spec.above and value == spec.low):
            bound = f"above {spec.low:g} and up to" if spec.above else f"from {spec.low:g} to"
            raise self.refused(name, f"must be a number {bound} {spec.high:g}")
        return value

    def text(self, name: str) -> str | None:
        """Raises InvalidField."""
        tensor = self._scalar(name)
        return None if tensor is None else strings(self.client_name(name), tensor)[0]

    def ids(self, name: str) -> tuple[int, ...] | None:
        """A vector of integers. Raises InvalidField."""
        tensor = self._of_rank(name, Rank.VECTOR)
        if tensor is None:
            return None
        spec = self._table[name]
        return tuple(integers(self.client_name(name), tensor, int(spec.low), int(spec.high)).tolist())

    def texts(self, name: str) -> list[str]:
        """A vector of texts. An absent vector is empty. Raises InvalidField."""
        tensor = self._tensors.get(name)
        if tensor is not None and not tensor.shape:
            return [self.text(name) or ""]
        tensor = self._of_rank(name, Rank.VECTOR)
        return [] if tensor is None else strings(self.client_name(name), tensor)

    def vector(self, name: str, *, may_exclude: bool = False) -> npt.NDArray[Any] | None:
        """A vector of finite FP32. Raises InvalidField.

        `may_exclude`: whether numbers may be -inf too.
        """
        tensor = self._of_rank(name, Rank.VECTOR)
        return None if tensor is None else floats(self.client_name(name), tensor, may_exclude=may_exclude)

    def table(self, name: str, *, may_exclude: bool = False) -> Tensor | None:
        """A table of finite numbers, of shape (rows, columns), in its datatype. Raises InvalidField.

        `may_exclude`: whether numbers may be -inf too.
        """
        tensor = self._of_rank(name, Rank.TABLE)
        if tensor is None:
            return None
        spec = self._table[name]
        if spec.datatype == "INT32":
            array = integers(self.client_name(name), tensor, -(2**31), 2**31 - 1)
            tensor = Tensor(dtype="INT32", shape=tensor.shape, data=array.astype("<i4").tobytes())
        else:
            single = floats(self.client_name(name), tensor, may_exclude=may_exclude)
            if tensor.dtype == "FP64":
                tensor = Tensor(dtype="FP32", shape=tensor.shape, data=single.tobytes())
        rows, columns = spec.shape
        for size, wanted in zip(tensor.shape, (rows, columns), strict=True):
            if wanted not in (-1, size):
                raise self.refused(name, f"must have the shape {_shown(spec)}")
        return tensor

    def _scalar(self, name: str) -> Tensor | None:
        tensor = self._checked(name)
        if tensor is not None and (len(tensor.shape) > MAX_SCALAR_RANK or prod(tensor.shape) != 1):
            raise self.refused(name, "must be one value, of shape [1] or [1, 1]")
        return tensor

    def _of_rank(self, name: str, rank: Rank) -> Tensor | None:
        """The tensor; if it has one dimension more than `rank`, without its leading dimension of 1."""
        tensor = self._checked(name)
        if tensor is None:
            return None
        shape = tensor.shape
        if len(shape) == rank + 1 and shape[0] == 1:
            shape = shape[1:]
        if len(shape) != rank:
            raise self.refused(name, f"must have the shape {_shown(self._table[name])}")
        return Tensor(dtype=tensor.dtype, shape=shape, data=tensor.data)

    def _checked(self, name: str) -> Tensor | None:
        tensor = self._tensors.get(name)
        if tensor is not None and tensor.dtype not in self._table[name].also:
            check_datatype(self.client_name(name), tensor, self._table[name].datatype)
        return tensor


def own_names(inputs: Mapping[str, Tensor], model: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors under the table's names, and a map from these to the client's names where those differ.

    Raises InvalidField for an unknown name, and for a tensor that is given under two of its names.
    """
    found: dict[str, Tensor] = {}
    names: dict[str, str] = {}
    for name, tensor in inputs.items():
        own = RENAMED.get(name, name)
        if own not in ACCEPTED:
            raise unexpected(name, model)
        if own in found:
            raise InvalidField(name, f"must not be given beside {names.get(own, own)}")
        found[own] = tensor
        if own != name:
            names[own] = name
    if TEXT_INPUT in found:
        for name in ("input_ids", "input_lengths"):
            if name in found:
                raise InvalidField(TEXT_INPUT, f"must not be given beside {name}")
        names["input_ids"] = TEXT_INPUT
    for words in ("bad_words", "stop_words"):
        if words in found and f"{words}_list" not in found:
            names[f"{words}_list"] = words
    return found, names


def unexpected(name: str, model: str) -> InvalidField:
    """The error for a tensor that the model does not accept."""
    return InvalidField(
        name[:256], f"unexpected inference input '{name[:256]}' for model '{model[:256]}'", joint=None
    )


def _shown(spec: Input) -> str:
    inner = ", ".join("n" if size == -1 else str(size) for size in spec.shape)
    return f"[{inner}] or [1, {inner}]"
