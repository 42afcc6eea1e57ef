"""compressed-tensors: FP8 and integers, as numbers of their own type or packed into words.

`config_groups` says how the layers that its targets name are quantised. `float-quantized`, `int-quantized`
and `naive-quantized` store codes as the tensor `weight`. `pack-quantized` stores signed integers plus half
their range in `weight_packed`, as a stream of bits, and the shape in `weight_shape`; zeros are packed too,
along the rows. `nvfp4-pack-quantized` stores four-bit floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.bits import in_words, unpack, words_for
from serve_app.models.quantised.fp8 import CODES, scaled
from serve_app.models.quantised.nvfp4 import GROUP as NVFP4_GROUP
from serve_app.models.quantised.nvfp4 import packed_nvfp4
from serve_app.models.quantised.packed import (
    FLOATS,
    PackedTensor,
    Stored,
    check_shape,
    groups_of,
    need,
    refused,
)
from serve_app.models.quantised.share import Along, Region, taken

_PACKED: Final = "pack-quantized"
_NUMBERS: Final = ("float-quantized", "int-quantized", "naive-quantized")
_NVFP4: Final = "nvfp4-pack-quantized"
_STRATEGIES: Final = ("tensor", "channel", "group", "block")
_CLASSES: Final = ("Linear", "FusedMoE")  # targets that are no names; packed tensors belong to linears


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How the layers of one group are quantised."""

    targets: tuple[str, ...]
    form: str
    bits: int
    group: int  # columns with one scale; -1: all
    block: tuple[int, int] | None
    symmetric: bool

    @classmethod
    def of(cls, group: Mapping[str, Any], form: str) -> _Scheme:
        weights, form = group["weights"], group.get("format") or form
        if form == _NVFP4:
            return cls(tuple(group["targets"]), form, 4, NVFP4_GROUP, None, True)
        if form not in (_PACKED, *_NUMBERS):
            raise ModelLoadError(
                f"its weights are quantised as compressed-tensors' {form}, which is not read here; choose a "
                f"repository in {', '.join((*_NUMBERS, _PACKED, _NVFP4))}, or with 16-bit weights"
            )
        strategy, bits = weights.get("strategy") or "tensor", weights.get("num_bits", 8)
        if strategy not in _STRATEGIES or bits not in range(2, 9):
            raise ModelLoadError(
                f"quantization_config: weights of {bits!r} bits with strategy {strategy!r} are not read here"
            )
        block = weights.get("block_structure") if strategy == "block" else None
        size = weights.get("group_size") if strategy == "group" else None
        return cls(
            targets=tuple(group["targets"]),
            form=form,
            bits=bits,
            group=-1 if size is None else int(size),
            block=None if block is None else (int(block[0]), int(block[1])),
            symmetric=bool(weights.get("symmetric", True)),
        )

    @property
    def label(self) -> str:
        shared = "" if self.group == -1 else f", groups of {self.group}"
        shared = shared if self.block is None else f", blocks of {self.block[0]} x {self.block[1]}"
        return f"{self.form}, {self.bits} bits{shared}"


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """Reads the weights of compressed-tensors, each by the group that names its layer."""

    schemes: tuple[_Scheme, ...]
    endings: tuple[str, ...] = (
        ".weight_packed",
        ".weight_scale",
        ".weight_shape",
        ".weight_zero_point",
        ".weight_g_idx",
        ".weight_global_scale",
    )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> CompressedTensors:
        """For the `quantization_config` of a checkpoint."""
        sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
        if sparsity != "dense":
            raise ModelLoadError(
                f"its weights are sparse as {sparsity!r}, which is not read here; choose a dense repository"
            )
        if (settings.get("transform_config") or {}).get("config_groups"):
            raise ModelLoadError(
                "its transform_config turns activations while the model runs, which is not done here; choose "
                "a repository without it"
            )
        form = settings.get("format") or ""
        groups = (settings.get("config_groups") or {}).values()
        schemes = tuple(_Scheme.of(each, form) for each in groups if each.get("weights"))
        if not schemes:
            raise ModelLoadError("quantization_config: no group of config_groups describes weights")
        return cls(schemes)

    @property
    def label(self) -> str:
        return f"compressed-tensors ({'; '.join(dict.fromkeys(each.label for each in self.schemes))})"

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        module, _, part = name.rpartition(".")
        if part == "weight_packed":
            scheme = self._scheme(module, name)
            if scheme.form == _NVFP4:
                weight = f"{module}.weight"
                scales, outer = f"{weight}_scale", f"{weight}_global_scale"
                return packed_nvfp4(weight, name, scales, outer, stored, divides=True)
            if scheme.form != _PACKED:
                raise refused(name, f"its group of quantization_config says {scheme.form}")
            return _packed(module, stored, scheme)
        if part == "weight" and stored[name].dtype in (*CODES, "I8"):
            scheme = self._scheme(module, name)
            if scheme.form not in _NUMBERS:
                raise refused(name, f"its group of quantization_config says {scheme.form}")
            return _numbers(name, stored, scheme)
        return None

    def _scheme(self, module: str, name: str) -> _Scheme:
        """By the layer's name, or else by its class."""
        for targets_class in (False, True):
            for scheme in self.schemes:
                for target in scheme.targets:
                    if target in _CLASSES if targets_class else _names(target, module):
                        return scheme
        raise refused(name, "no group of quantization_config names its layer")


def _names(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return target == module


def _numbers(name: str, stored: Stored, scheme: _Scheme) -> PackedTensor:
    codes = stored[name]
    scales = need(stored, f"{name}_scale", FLOATS, name)
    block = scheme.block
    if scheme.group != -1 and len(codes.shape) > 1:
        groups_of(codes.shape[-1], scheme.group, name)
        block = (1, scheme.group)
    found = scaled(codes, scales, block)
    zero = f"{name}_zero_point"
    if not scheme.symmetric or zero in stored:
        zeros = need(stored, zero, ("I8",) if codes.dtype == "I8" else (*CODES, "I8"), name)
        check_shape(zeros, scales.shape)
        found = replace(found, parts={**found.parts, "zeros": zeros})
    return found


def _packed(module: str, stored: Stored, scheme: _Scheme) -> PackedTensor:
    name = f"{module}.weight_packed"
    codes = need(stored, name, ("I32",), name)
    scales = need(stored, f"{module}.weight_scale", FLOATS, name)
    stated = need(stored, f"{module}.weight_shape", ("I64", "I32"), name)
    shape = stated.integers()
    if len(codes.shape) != 2 or len(shape) != 2 or min(shape) < 1:
        raise refused(name, f"weight_shape says {shape}, its own shape is {list(codes.shape)}")
    rows, columns = shape
    if 32 % scheme.bits and columns % 32:
        raise refused(name, f"{columns} columns of {scheme.bits} bits were packed in more than one way")
    check_shape(codes, (rows, words_for(columns, scheme.bits)))
    groups = groups_of(columns, scheme.group, name)
    tall = (scales.shape or (1,))[0]
    check_shape(scales, (rows, groups), *(((rows,), (1,), ()) if groups == 1 else ()))
    parts = {"codes": codes, "scales": scales, "shape": stated}
    zero, order = f"{module}.weight_zero_point", f"{module}.weight_g_idx"
    if not scheme.symmetric or zero in stored:
        parts["zeros"] = need(stored, zero, ("I32", "I8"), name)
        if parts["zeros"].dtype == "I32":
            check_shape(parts["zeros"], (words_for(rows, scheme.bits), groups))
        else:
            check_shape(parts["zeros"], scales.shape)
    if order in stored:
        parts["permutation"] = need(stored, order, ("I32", "I64"), name)
        check_shape(parts["permutation"], (columns,))
    tall = 1 if tall == rows else rows  # rows with one scale
    by_rows, by_columns = {"codes": Along(0)}, {"codes": in_words(1, scheme.bits)}
    if tall == 1:
        by_rows["scales"] = by_rows["zeros"] = Along(0)
        if "zeros" in parts and parts["zeros"].dtype == "I32":
            by_rows["zeros"] = in_words(0, scheme.bits)
    if groups > 1 and "permutation" not in parts:  # else scales are of all columns
        by_columns["scales"] = by_columns["zeros"] = Along(1, columns // groups)
    return PackedTensor(
        f"{module}.weight",
        (rows, columns),
        parts,
        partial(_unpack, bits=scheme.bits, block=(tall, columns // groups)),
        rows={role: each for role, each in by_rows.items() if role in parts},
        columns={role: each for role, each in by_columns.items() if role in parts},
        group=columns // groups,
    )


def _unpack(
    parts: Mapping[str, torch.Tensor], region: Region, bits: int, block: tuple[int, int]
) -> QuantisedMatrix:
    half, (rows, columns), order = 2 ** (bits - 1), region.shape, parts.get("permutation")
    scales = parts["scales"].reshape(-(-rows // block[0]), -1)
    zeros = parts.get("zeros", torch.zeros(1, dtype=torch.int8, device=scales.device))
    if zeros.dtype == torch.int32:
        zeros = unpack(zeros.T, bits, len(scales)).T.to(torch.int16) - half
    if order is not None and bool((order == -1).all()):
        order = torch.arange(len(order), device=order.device) // block[1]
    return QuantisedMatrix(
        unpack(parts["codes"], bits, columns),
        scales,
        block,
        zeros=(zeros.to(torch.int16) + half).expand_as(scales).contiguous(),
        permutation=None if order is None else taken(order, region.columns),
    ).in_order()
