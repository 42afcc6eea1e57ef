"""The formats of `quantization` for linear layers: their sizes and devices. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Answers are most sensitive to the head and to the linears of queries, keys and values, with these endings.
SENSITIVE: Final = ("q_proj", "k_proj", "v_proj", "qkv_proj")


@dataclass(frozen=True, slots=True)
class FormatSize:
    """The size of a weight in one format."""

    bits: int | None  # per weight, without the scales of outputs; None: those of its own type
    sensitive: str  # the format of sensitive linears instead
    devices: frozenset[str] = frozenset({"cpu"})  # by torch's names
    codes_on: frozenset[str] = frozenset()  # devices that multiply by the codes of quantised checkpoints

    def format_of(self, linear: str, own: str) -> str:
        """The format of the layer `linear`, in a model whose format is `own` and has this size."""
        return self.sensitive if linear.endswith(SENSITIVE) else own


FORMATS: Final[Mapping[str, FormatSize]] = {
    "none": FormatSize(None, "none", frozenset({"cpu", "cuda"}), frozenset({"cpu"})),
    "int8": FormatSize(8, "int8"),
    "int4": FormatSize(5, "int8"),  # with a step and a minimum for every sixteen weights
}


def bits_of(name: str) -> int:
    """Bits per weight in the format `name`; ValueError if the format keeps weights in their own type."""
    bits = FORMATS[name].bits
    if bits is None:
        raise ValueError(f"weights of the format {name} have the size of their type")
    return bits


def keeps_codes(dtype: str, quantization: str, device: str) -> bool:
    """Whether weights of a quantised checkpoint stay codes, with these settings, on a device of this type.

    A `dtype` in the settings is that of all weights, so it makes plain numbers of them.
    """
    return dtype == "auto" and device in FORMATS[quantization].codes_on
