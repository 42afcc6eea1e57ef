"""The types of numbers in a GGUF file, by their ids: how many numbers a block has, in how many bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class NumberType:
    """How numbers of one type are stored. Types of floats have the names that safetensors gives them."""

    name: str
    numbers: int  # in a block
    num_bytes: int  # of a block
    bits: int = 0  # of a code; 0: numbers are floats
    scales: int = 1  # in a block
    minimums: bool = False  # beside the scales
    table: bool = False  # codes are places in a table of integers


TYPES: Final[Mapping[int, NumberType]] = {
    0: NumberType("F32", 1, 4),
    1: NumberType("F16", 1, 2),
    2: NumberType("Q4_0", 32, 18, 4),
    3: NumberType("Q4_1", 32, 20, 4, minimums=True),
    6: NumberType("Q5_0", 32, 22, 5),
    7: NumberType("Q5_1", 32, 24, 5, minimums=True),
    8: NumberType("Q8_0", 32, 34, 8),
    10: NumberType("Q2_K", 256, 84, 2, 16, minimums=True),
    11: NumberType("Q3_K", 256, 110, 3, 16),
    12: NumberType("Q4_K", 256, 144, 4, 8, minimums=True),
    13: NumberType("Q5_K", 256, 176, 5, 8, minimums=True),
    14: NumberType("Q6_K", 256, 210, 6, 16),
    20: NumberType("IQ4_NL", 32, 18, 4, table=True),
    23: NumberType("IQ4_XS", 256, 136, 4, 8, table=True),
    30: NumberType("BF16", 1, 2),
    39: NumberType("MXFP4", 32, 17, 4),
}
BLOCKS: Final[Mapping[str, NumberType]] = {each.name: each for each in TYPES.values() if each.numbers > 1}
# Of which the values are not read here.
OTHERS: Final[Mapping[int, str]] = {
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
}
