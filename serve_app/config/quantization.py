"""What `quantization` makes of the weights of linear layers, for loading and for counting bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Bits of a weight, without the scales of outputs. An int4 weight has a step and a least for every sixteen.
BITS: Final[Mapping[str, int]] = {"int8": 8, "int4": 5}
# How the names of linears end that an int4 model has in int8, as it has its head: queries, keys and values.
SENSITIVE: Final = ("q_proj", "k_proj", "v_proj", "qkv_proj")
