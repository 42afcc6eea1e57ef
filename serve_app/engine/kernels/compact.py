"""Weights of bfloat16 in twelve bits, without loss (see compact.h).

Groups of sixteen outputs have few different exponents in their weights. So the byte with sign and exponent
becomes a code of four bits; the few weights without a code are kept in a list. A decode reads a quarter less
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from serve_app.engine.kernels.structs import INPUTS, LANES, packed_size

CODES: Final = 16  # of each panel
EXCEPTION: Final = 8  # bytes
MOST_COMPACT: Final = 0.9  # of the bytes of bfloat16: a weight that needs more stays as it is


@dataclass(frozen=True, slots=True)
class CompactWeight:
    """A packed weight [outputs, inputs]."""

    data: torch.Tensor  # bytes
    outputs: int
    inputs: int

    def fits(self, n: int, k: int) -> bool:
        """Whether products may use this form as a weight [n, k] whose inputs are padded with zeros."""
        unit = INPUTS[torch.bfloat16]
        return (n, -(-k // unit)) == (self.outputs, -(-self.inputs // unit))


def empty_codes(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For `choose_codes` of n outputs, not filled: codes [P, CODES] uint8, exception counts [P] int64."""
    panels = -(-n // LANES)
    return torch.zeros(panels, CODES, dtype=torch.uint8), torch.full((panels,), -1)


def compact_size(n: int, k: int, exceptions: torch.Tensor) -> int | None:
    """The bytes of a compact weight [n, k] that has `exceptions` [P]; None if the exceptions are unknown."""
    if bool((exceptions < 0).any()):
        return None
    tiles = packed_size(n, k, torch.bfloat16) * 3 // 2
    panels = len(exceptions)
    return tiles + panels * CODES + (panels + 1) * 8 + int(exceptions.sum() + panels) * EXCEPTION


def write_codes(data: torch.Tensor, codes: torch.Tensor, exceptions: torch.Tensor) -> None:
    """Write the part of a compact weight that follows its tiles, with the lists of exceptions still empty."""
    firsts = functional.pad((exceptions + 1).cumsum(0), (1, 0))
    room = int(firsts[-1]) * EXCEPTION
    data[-room:] = 255  # an exception beyond every panel
    data[-room - firsts.nbytes : -room] = firsts.view(torch.uint8)
    data[-room - firsts.nbytes - codes.nbytes : -room - firsts.nbytes] = codes.flatten()
