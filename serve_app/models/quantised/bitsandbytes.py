"""bitsandbytes: four-bit codes of a table in blocks (NF4, FP4), and int8 with a scale for each row.

Four-bit codes lie two in a byte, the first in the high half, in `X.weight` [N x K / 2, 1]. Beside it are the
table (`quant_map`), the scales (`absmax`), and a JSON text with shape and block size (`quant_state`). Scales
may be codes of a table themselves ("double quantisation"), to which an offset is added. Int8 has `X.SCB`, 127
times the scale of each row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any, Final

import torch

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.quantised.bits import nibbles
from serve_app.models.quantised.packed import PackedTensor, Stored, check_shape, groups_of, need, refused
from serve_app.models.quantised.share import Along, Region, taken

_STATE: Final = ".quant_state.bitsandbytes__"
_KINDS: Final = ("nf4", "fp4")
_MOST: Final = 127


@dataclass(frozen=True, slots=True)
class Bitsandbytes:
    """Reads both; a checkpoint has only one of them."""

    label: str
    endings: tuple[str, ...] = (
        *(".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"),
        *(_STATE + kind for kind in _KINDS),
        *(".SCB", ".weight_format"),
    )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Bitsandbytes:
        """For the `quantization_config` of a checkpoint."""
        kind = str(settings.get("bnb_4bit_quant_type", "fp4")) if settings.get("load_in_4bit") else "int8"
        return cls(f"bitsandbytes {kind}")

    def find(self, name: str, stored: Stored) -> PackedTensor | None:
        if not name.endswith(".weight"):
            return None
        if stored[name].dtype == "I8":
            return _rows(name, stored)
        states = [name + _STATE + kind for kind in _KINDS if name + _STATE + kind in stored]
        return _blocks(name, states[0], stored) if states else None


def _rows(name: str, stored: Stored) -> PackedTensor:
    codes, module = stored[name], name.removesuffix(".weight")
    scales = need(stored, f"{module}.SCB", ("F32",), name)
    if len(codes.shape) != 2:
        raise refused(name, f"its shape {list(codes.shape)} is of no matrix")
    rows, columns = codes.shape
    check_shape(scales, (rows,))
    parts = {"codes": codes, "scales": scales}
    if f"{module}.weight_format" in stored:
        parts["format"] = need(stored, f"{module}.weight_format", ("U8",), name)
        if any(parts["format"].data()):
            raise refused(parts["format"].name, "only weights in rows are read here")

    def unpack(tensors: Mapping[str, torch.Tensor], region: Region) -> QuantisedMatrix:
        return QuantisedMatrix(tensors["codes"], tensors["scales"][:, None] / _MOST, (1, columns))

    return PackedTensor(
        name,
        (rows, columns),
        parts,
        unpack,
        rows={"codes": Along(0), "scales": Along(0)},
        columns={"codes": Along(1)},
    )


def _blocks(name: str, state: str, stored: Stored) -> PackedTensor:
    try:
        settings = json.loads(stored[state].data())
        rows, columns = settings["shape"]
        size, nested = int(settings["blocksize"]), "nested_blocksize" in settings
        offset, outer = float(settings.get("nested_offset", 0)), int(settings.get("nested_blocksize", 1))
    except (ValueError, KeyError, TypeError) as error:
        raise refused(state, f"it is not valid ({type(error).__name__}: {error})") from error
    codes = need(stored, name, ("U8",), name)
    check_shape(codes, (rows * columns // 2, 1), (1, rows * columns // 2))
    groups = groups_of(columns, size, name)
    values = need(stored, f"{name}.quant_map", ("F32",), name)
    scales = need(stored, f"{name}.absmax", ("U8" if nested else "F32",), name)
    check_shape(values, (16,))
    check_shape(scales, (rows * groups,))
    parts = {
        "codes": replace(codes, shape=(rows, columns // 2)),
        "state": stored[state],
        "values": values,
        "scales": replace(scales, shape=(rows, groups)),
    }
    by_rows = {"codes": Along(0), "scales": Along(0)}
    by_columns = {"codes": Along(1, size, size // 2), "scales": Along(1, size)}
    if nested:
        parts["outer"] = need(stored, f"{name}.nested_absmax", ("F32",), name)
        parts["table"] = need(stored, f"{name}.nested_quant_map", ("F32",), name)
        check_shape(parts["outer"], (-(-rows * groups // outer),))
        check_shape(parts["table"], (256,))
        shared = gcd(outer, groups)  # an outer scale is of scales that follow each other, through all rows
        by_rows["outer"] = Along(0, outer // shared, groups // shared)
        del by_columns["scales"]
    made = partial(_unpack, size=size, offset=offset, outer=outer)
    return PackedTensor(name, (rows, columns), parts, made, by_rows, by_columns)


def _unpack(
    parts: Mapping[str, torch.Tensor], region: Region, size: int, offset: float, outer: int
) -> QuantisedMatrix:
    scales = parts["scales"]
    if "table" in parts:
        others = parts["outer"].repeat_interleave(outer)[: scales.numel()].view(scales.shape)
        scales = taken(parts["table"][scales.int()] * others + offset, region.groups(size), 1)
    return QuantisedMatrix(
        nibbles(parts["codes"], high_first=True),
        scales,
        (1, size),
        values=parts["values"],
    )
