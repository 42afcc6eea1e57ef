"""Low-rank adapters (LoRA): what one adds to a model. Does not depend on files, models, or requests.

An adapter adds `(x A^T) B^T` to the outputs of some linears, for its own rows of a step only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch

ATTENTION: Final = ("q_proj", "k_proj", "v_proj")
MLP: Final = ("gate_proj", "up_proj")
MODULES: Final = (*ATTENTION, "o_proj", *MLP, "down_proj")  # as Llama and its kin call them

Place = tuple[int, str]  # a layer, and one of MODULES in it


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's matrices at one place; the scale is in B."""

    layer: int
    module: str  # of MODULES
    a: torch.Tensor  # [r, K]
    b: torch.Tensor  # [N, r]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A linear as the model computes it: one module, or several side by side."""

    layer: int
    features: int  # K
    widths: dict[str, int]  # module -> its outputs, in order
    rows: torch.Tensor | None = None  # [N]: which output lies where, each among its module's; None: in order

    @property
    def width(self) -> int:
        """All outputs, N."""
        return sum(self.widths.values())

    def arranged(self, update: LowRank) -> LowRank:
        """The outputs of `update`, arranged in the site's order."""
        if self.rows is None:
            return update
        place = dict(self.outputs())[update.module]
        return replace(update, b=update.b[self.rows[place] - place.start])

    def outputs(self) -> Iterator[tuple[str, slice]]:
        """Each module, and where its outputs lie."""
        at = 0
        for module, width in self.widths.items():
            yield module, slice(at, at + width)
            at += width


class RowAdapters(Protocol):
    """The adapters of a step: each row has its own adapter, or none."""

    def add(self, site: Site, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add the products of the rows' adapters with `x` [T, K] to `out` [T, N]; both are contiguous."""
        ...
