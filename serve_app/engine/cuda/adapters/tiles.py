"""Which rows of a step have which adapter, as tiles that kernels read: rows of one adapter each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from serve_app.engine.transfer import send

FEW: Final = 16  # rows of a tile, the fewest that tensor cores multiply
MANY: Final = 64  # the same in steps with prompts, where an adapter has many rows


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of at most `size` rows. A tile without rows is skipped."""

    order: torch.Tensor  # [rows] int32: rows of the step, those of a tile side by side
    bounds: torch.Tensor  # [tiles, 3] int32: the first place in `order`, the number of rows, the slot
    size: int


def most_tiles(rows: int, size: int, adapters: int) -> int:
    """The most tiles of up to `size` rows that `rows` rows with up to `adapters` adapters can need."""
    return min(rows, rows // size + adapters)


def tiles_of(rows: Collection[tuple[int, list[range]]], size: int, device: torch.device) -> Tiles:
    """The tiles of a step. `rows`: each slot only once, with the spans of its rows."""
    order: list[int] = []
    bounds: list[tuple[int, int, int]] = []
    for slot, spans in rows:
        each = [row for span in spans for row in span]
        first = len(order)
        order += each
        bounds += [(first + start, min(size, len(each) - start), slot) for start in range(0, len(each), size)]
    arrays = (np.array(each, dtype=np.int32) for each in (order, bounds))
    order_there, bounds_there = send(device, *arrays)
    return Tiles(order=order_there, bounds=bounds_there, size=size)
