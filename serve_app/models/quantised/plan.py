"""Which tensors of a quantised checkpoint are converted, loaded as they are, or not used; none is ignored.

Reads only headers, so every tensor is known before the first one is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.packed import PackedTensor, Reader, refused
from serve_app.models.split.cut import CutOf
from serve_app.models.stored import StoredTensor, parts_of, stored_tensors

_NUMBERS: Final = frozenset({"F64", "F32", "F16", "BF16"})
_INTEGERS: Final = frozenset({"I64", "I32", "BOOL"})  # of buffers
_CODES: Final = ("F8_", "F6_", "F4")
# Scales of activations and of cached keys and values: how their names end.
_CACHE: Final = (
    *(".k_scale", ".v_scale", ".k_zero_point", ".v_zero_point"),
    *("k_proj.output_scale", "v_proj.output_scale"),  # their outputs are what is cached
)
_ACTIVATIONS: Final = (
    *(".input_scale", ".input_zero_point", ".input_scale_ub", ".input_global_scale", "activation_scale"),
    *(".output_scale", ".output_zero_point", ".q_scale"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The tensors of a checkpoint, by what becomes of them."""

    packed: tuple[PackedTensor, ...]
    plain: tuple[StoredTensor, ...]
    activations: tuple[str, ...]  # scales of activations
    cache: tuple[str, ...]  # scales of a quantised KV cache

    @classmethod
    def of(cls, tensors: Iterable[StoredTensor], reader: Reader) -> Plan:
        """Raises ModelLoadError, with its name, for a tensor of which a part is missing or wrong, or that no
        rule takes."""
        stored = {each.name: each for each in tensors}
        found = [weight for name in stored if (weight := reader.find(name, stored)) is not None]
        taken = {part.name for weight in found for part in weight.parts.values()}
        weights = {weight.name for weight in found}
        plain, activations, cache = [], [], []
        for name, tensor in stored.items():
            if name in taken:
                continue
            if name.endswith(_CACHE):
                cache.append(name)
            elif name.endswith(_ACTIVATIONS):
                activations.append(name)
            elif name in weights:
                raise refused(name, "the checkpoint holds this weight a second time, as codes")
            elif name.endswith(reader.endings):
                raise refused(name, f"it belongs to codes of {reader.label} that are not there")
            elif not is_plain(tensor):
                raise refused(name, f"{reader.label} has no tensors of type {tensor.dtype} with this name")
            else:
                plain.append(tensor)
        return cls(tuple(found), tuple(plain), tuple(activations), tuple(cache))

    def part(self, cut_of: CutOf) -> Plan:
        """What a rank loads, of whose tensors it keeps these cuts."""
        packed = ((each, cut_of(each.name, each.full_shape)) for each in self.packed)
        return replace(
            self,
            packed=tuple(each if cut is None else each.part(cut) for each, cut in packed),
            plain=tuple(parts_of(self.plain, cut_of)),
        )

    def lines(self, label: str, dtype: torch.dtype, *, keep_codes: bool = False) -> Iterator[str]:
        """What the operator should know about the load in `dtype`, of codes or of weights converted to it."""
        name = str(dtype).removeprefix("torch.")
        before = sum(part.num_bytes for each in self.packed for part in each.parts.values())
        after = sum(math.prod(each.full_shape) for each in self.packed) * dtype.itemsize
        if self.packed and keep_codes:
            yield f"{len(self.packed)} weights are {label}: {before / 2**30:,.2f} GiB of codes in the files"
        elif self.packed:
            yield (
                f"converting {len(self.packed)} weights from {label} to {name}: {before / 2**30:,.2f} GiB in "
                f"the files, {after / 2**30:,.2f} GiB in memory"
            )
        if self.activations:
            yield (
                f"{len(self.activations)} scales of activations are not used, such as {self.activations[0]}: "
                f"activations {'have scales of their own' if keep_codes else f'stay in {name}'}"
            )
        if self.cache:
            yield (
                f"{len(self.cache)} scales of a quantised KV cache are not used, such as {self.cache[0]}: "
                f"keys and values stay in {name}, or get scales of their own with kv_cache_dtype int8 or fp8"
            )

    def kept(self, dtype: str, device: str) -> list[StoredTensor]:
        """The tensors as they are in memory of `device` if codes stay codes where it multiplies by them; the
        other weights in `dtype`, in safetensors' words."""
        size = 4 if dtype == "F32" else 2
        return [*self.plain, *(each.kept(device) or each.converted(dtype, size) for each in self.packed)]

    def keeps_any(self, device: str) -> bool:
        """Whether a weight stays codes in memory of `device`."""
        return any(each.kept(device) is not None for each in self.packed)

    def served(self, dtype: str) -> list[StoredTensor]:
        """The tensors as they would be stored if the checkpoint had its weights in `dtype`, in safetensors'
        words."""
        size = 4 if dtype == "F32" else 2
        return [*self.plain, *(each.converted(dtype, size) for each in self.packed)]


def is_plain(tensor: StoredTensor) -> bool:
    """Whether a tensor needs no conversion: numbers, or a buffer of integers."""
    if tensor.dtype in _NUMBERS:
        return True
    return tensor.dtype in _INTEGERS and "weight" not in tensor.name.rpartition(".")[2]


def check_tensors(folder: Path, reader: Reader) -> None:
    """Raise ModelLoadError if the files in `folder` are not what `reader` needs."""
    try:
        Plan.of(stored_tensors(folder), reader)
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadError(
            f"the weights in {folder} could not be read: {error}; fetch the model again"
        ) from error


def check_plain(tensors: Iterable[StoredTensor]) -> None:
    """Raise ModelLoadError for a tensor of codes, in a checkpoint that does not say how it is quantised."""
    for each in tensors:
        if each.dtype.startswith(_CODES) or (each.name.endswith("weight") and each.dtype not in _NUMBERS):
            raise ModelLoadError(
                f"the tensor {each.name} is of type {each.dtype}, and config.json has no quantization_config "
                "that says how to read it; fetch the model again with its own config.json"
            )
