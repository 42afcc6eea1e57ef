"""Runs the few instructions of PTX that decode codes, on a processor, for many words at once."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import torch

Words = np.ndarray  # uint32


def run(program: str, outputs: int, inputs: list[Words]) -> list[Words]:
    """The values of $0, $1 and so on after `program`, whose inputs are in the registers after these."""
    registers: dict[str, Words] = {f"${outputs + place}": each for place, each in enumerate(inputs)}

    def value(name: str) -> Words:
        if name.startswith("0x") or name.isdigit():
            return np.full_like(inputs[0], int(name, 0))
        return registers[name]

    for statement in program.strip("{} ").split(";"):
        name, _, arguments = statement.strip().partition(" ")
        if not name or name.startswith(".reg"):
            continue
        target, *sources = re.split(r",\s*", arguments)
        registers[target] = INSTRUCTIONS[name](*map(value, sources))
    return [registers[f"${place}"] for place in range(outputs)]


def _permute(a: Words, b: Words, chosen: Words) -> Words:
    both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
    found = np.zeros_like(a)
    for byte in range(4):
        place = (chosen >> np.uint32(4 * byte)) & np.uint32(7)
        found |= ((both >> (place.astype(np.uint64) * np.uint64(8))) & np.uint64(255)).astype(
            np.uint32
        ) << np.uint32(8 * byte)
    return found


def _logic(a: Words, b: Words, c: Words, table: Words) -> Words:
    found = np.zeros_like(a)
    for row in range(8):
        if int(table[0]) >> row & 1:
            terms = [each if row >> place & 1 else ~each for each, place in ((a, 2), (b, 1), (c, 0))]
            found |= terms[0] & terms[1] & terms[2]
    return found


def halves(words: Words, dtype: torch.dtype) -> torch.Tensor:
    """[..., 2] float64: the two numbers in each word, the low one first."""
    parts = np.stack([words & 0xFFFF, words >> 16], -1).astype(np.uint16).view(np.int16)
    return torch.from_numpy(parts).view(dtype).double()


def _on_halves(dtype: torch.dtype, operation: Callable[..., torch.Tensor]) -> Callable[..., Words]:
    def found(*given: Words) -> Words:
        numbers = operation(*(halves(each, dtype) for each in given))
        rounded = numbers.to(dtype)
        assert torch.equal(rounded.double(), numbers)  # what these programs compute is exact
        bits = rounded.view(torch.int16).numpy().view(np.uint16).astype(np.uint32)
        return bits[..., 0] | (bits[..., 1] << np.uint32(16))

    return found


INSTRUCTIONS: dict[str, Callable[..., Words]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shl.b32": lambda a, b: a << b,
    "shr.b32": lambda a, b: a >> b,
    "prmt.b32": _permute,
    "lop3.b32": _logic,
    "fma.rn.bf16x2": _on_halves(torch.bfloat16, lambda a, b, c: a * b + c),
    "add.rn.f16x2": _on_halves(torch.float16, lambda a, b: a + b),
    "mul.rn.f16x2": _on_halves(torch.float16, lambda a, b: a * b),
}
