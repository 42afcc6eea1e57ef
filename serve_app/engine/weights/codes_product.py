"""Weights as codes on a GPU, which are multiplied as they are in memory, by few rows and by many."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import triton

from serve_app.engine.attention.triton.early import early_start
from serve_app.engine.attention.triton.launcher import Launcher
from serve_app.engine.attention.triton.product import WIDENED
from serve_app.engine.kernels.structs import LinearStruct
from serve_app.engine.weights import codes_kernels as kernels
from serve_app.engine.weights.decoding import STEP, Form, constraints, instructions
from serve_app.engine.weights.gpu_codes import GpuCodes

FEW: Final = 128  # rows of a program at most
APART: Final = 128  # rows at most for which each part of the inputs has programs of its own
OUTPUTS: Final = 64  # of a program with few rows
PROGRAMS: Final = 256  # wanted at least: two for each multiprocessor of an H200
LEAST_STEPS: Final = 4  # of a part
MOST_PARTS: Final = 8
LEAST_ROWS: Final = 16  # of a program
FLOAT_ROWS: Final = 32  # of a program at most, if they are float32, which are multiplied in registers

_MULTIPLY = Launcher(kernels.multiply_codes)


class CodesProduct:
    """A weight as codes, with the type in which a model has its weights."""

    def __init__(self, codes: GpuCodes, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self.codes, self._dtype = codes, dtype
        self._bias = None if bias is None else bias.detach().contiguous()
        tiles = -(-codes.outputs // OUTPUTS)
        self.parts = parts_of(tiles, -(-codes.inputs // STEP))
        self._done = torch.zeros(tiles * APART // FLOAT_ROWS, dtype=torch.int32, device=codes.words.device)

    @property
    def num_bytes(self) -> int:
        return self.codes.num_bytes

    def multiply(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        codes, rows = self.codes, len(x)
        if codes.order is None and x.shape[1] != codes.inputs:
            raise ValueError(f"a matrix of {codes.outputs} x {codes.inputs} got {tuple(x.shape)}")
        x = x.to(self._dtype).contiguous() if codes.order is None else x.to(self._dtype)[:, codes.order]
        out = x.new_empty(rows, codes.outputs, dtype=dtype)
        if not rows:
            return out
        parts = self.parts
        apart = rows <= APART and parts > 1
        size, outputs, options = tile_of(rows, x.dtype)
        tiles = triton.cdiv(codes.outputs, outputs)
        partial_sums = x.new_empty(parts, *out.shape, dtype=torch.float32) if apart else out
        _MULTIPLY(
            (triton.cdiv(rows, size), tiles * (parts if apart else 1)),
            *(x, codes.words, codes.scales, codes.words if codes.zeros is None else codes.zeros),
            *(codes.words if self._bias is None else self._bias, out, partial_sums, self._done),
            *(rows, codes.outputs),
            K=codes.inputs,
            STEP=STEP,
            STEPS=triton.cdiv(codes.inputs, STEP),
            PARTS=parts,
            APART=apart,
            M=size,
            N=outputs,
            GROUP=codes.group,
            ZEROS=codes.zeros is not None,
            WHOLE=codes.outputs % outputs == 0,
            BIAS=self._bias is not None,
            **decoding(codes.form, x.dtype),
            **options,
            **early_start(x.device),
        )
        return out

    def describe(self) -> LinearStruct | None:
        return None


def parts_of(tiles: int, steps: int) -> int:
    """The parts in which a product sums its inputs: more for a matrix with few outputs."""
    parts = 1
    while tiles * parts < PROGRAMS and parts < MOST_PARTS and steps >= 2 * parts * LEAST_STEPS:
        parts *= 2
    return parts


def tile_of(rows: int, dtype: torch.dtype) -> tuple[int, int, dict[str, int]]:
    """The rows and outputs of a program, and its launch options."""
    size = min(FEW, max(LEAST_ROWS, triton.next_power_of_2(rows)))
    if dtype == torch.float32:
        return min(size, FLOAT_ROWS), OUTPUTS, {"num_warps": 8, "num_stages": 2}
    if rows <= FEW:
        return size, OUTPUTS, {"num_warps": 4, "num_stages": 4 if size <= 64 else 3}
    return size, 2 * OUTPUTS, {"num_warps": 8, "num_stages": 3}


@cache
def decoding(form: Form, dtype: torch.dtype) -> dict[str, Any]:
    """The constants of a kernel that say how it decodes words to numbers of `dtype`."""
    plain = WIDENED.value or dtype == torch.float32
    return {
        "FORM": int(form),
        "PLACES": form.codes,
        "DECODE": None if plain else instructions(form, half=dtype == torch.float16),
        "REGISTERS": None if plain else constraints(form),
    }
