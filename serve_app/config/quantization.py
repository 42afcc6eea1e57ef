"""The formats of `quantization` for linear layers: their sizes and devices. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Answers are most sensitive to the head and to the linears of queries, keys and values, with these endings.
SENSITIVE: Final = ("q_proj", "k_proj", "v_proj", "qkv_proj")
CPU, GPU = "cpu", "cuda"  # by torch's names


@dataclass(frozen=True, slots=True)
class FormatSize:
    """The size of a weight in one format."""

    # Per weight, without the scales of outputs, by device; empty: those of its own type, on every device.
    bits: Mapping[str, float]
    sensitive: str  # the format of sensitive linears instead
    codes_on: frozenset[str] = frozenset()  # devices that multiply by the codes of quantised checkpoints

    @property
    def devices(self) -> frozenset[str]:
        return frozenset(self.bits or (CPU, GPU))

    @property
    def where(self) -> str:
        """The devices, for the operator."""
        return " or ".join({CPU: "a CPU", GPU: "a GPU"}[each] for each in sorted(self.devices))

    def format_of(self, linear: str, own: str) -> str:
        """The format of the layer `linear`, in a model whose format is `own` and has this size."""
        return self.sensitive if linear.endswith(SENSITIVE) else own


FORMATS: Final[Mapping[str, FormatSize]] = {
    "none": FormatSize({}, "none", frozenset({CPU, GPU})),
    "int8": FormatSize({CPU: 8, GPU: 8}, "int8"),
    # On a CPU a step and a minimum for every sixteen weights; on a GPU a scale of two bytes for every 32.
    "int4": FormatSize({CPU: 5, GPU: 4.5}, "int8"),
    "fp8": FormatSize({GPU: 8}, "fp8"),
}


def bits_of(name: str, device: str) -> float:
    """Bits per weight in the format `name`; ValueError if it keeps weights in their own type there."""
    bits = FORMATS[name].bits.get(device)
    if bits is None:
        raise ValueError(f"the format {name} has no size of its own on {device}")
    return bits


def keeps_codes(dtype: str, quantization: str, device: str) -> bool:
    """Whether weights of a quantised checkpoint stay codes, with these settings, on a device of this type.

    A `dtype` in the settings is that of all weights, so it makes plain numbers of them.
    """
    return dtype == "auto" and device in FORMATS[quantization].codes_on
