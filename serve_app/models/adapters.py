"""A client's LoRA adapter before it runs: two tensors of a request -> checked matrices.

Checks shapes, types, ranks, layers and values, so that a model never gets an adapter that does not fit. Does
not depend on the engine; a table of shapes describes what the model accepts. Rows are laid out as
TensorRT-LLM's clients send them: A flat, B flat, and padding up to a common width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

import torch

from serve_app.errors import InvalidField
from serve_app.types import Tensor

CONFIG: Final = "lora_config"
WEIGHTS: Final = "lora_weights"

# Module ids of TensorRT-LLM; 5 and 7 as its converter from Hugging Face has them.
MODULE_IDS: Final = (
    "qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj", "up_proj"
)  # fmt: skip
SIDE_BY_SIDE: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
DTYPES: Final = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}

Shapes = Mapping[tuple[int, str], tuple[int, int]]  # (layer, module) -> (N, K) of its linear


class Update(NamedTuple):
    """An adapter's update of one linear layer; the adapter's scale is folded into B."""

    layer: int
    module: str  # a name in the table of shapes
    a: torch.Tensor  # [r, K]
    b: torch.Tensor  # [N, r]


@dataclass(frozen=True, slots=True)
class Accepts:
    """The adapters that a model accepts."""

    shapes: Shapes  # empty: no adapters at all
    max_rank: int
    dtype: torch.dtype  # that matrices are converted to

    @property
    def num_layers(self) -> int:
        return 1 + max((layer for layer, _ in self.shapes), default=-1)

    def whole(self, layer: int, module: str) -> tuple[int, int] | None:
        """The shape (N, K) of a module, which may be several modules side by side; None if the model lacks
        it."""
        shapes = [self.shapes.get((layer, part)) for part in SIDE_BY_SIDE.get(module, (module,))]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return None
        return sum(n for n, _ in known), known[0][1]

    def is_finite(self, tensor: torch.Tensor) -> bool:
        """Whether all numbers are finite in the model's own type."""
        return bool(tensor.to(self.dtype).isfinite().all())


def read_tensors(config: Tensor, weights: Tensor, accepts: Accepts) -> list[Update]:
    """The adapter in a request's two tensors. Raises InvalidField, whose message names the tensor, the row
    and the valid range."""
    rows = _read_config(config, accepts)
    if weights.dtype not in DTYPES:
        raise InvalidField(WEIGHTS, f"must be of type {', '.join(DTYPES)}")
    dtype = DTYPES[weights.dtype]
    _check_shape(WEIGHTS, weights, dtype, "must have the shape [rows, width]", None)
    if weights.shape[0] != len(rows):
        raise InvalidField(WEIGHTS, f"must have a row for each of the {len(rows)} rows of {CONFIG}")
    width = weights.shape[1]
    values = torch.frombuffer(bytearray(weights.data), dtype=dtype).view(len(rows), width)
    updates: list[Update] = []
    for at, (layer, module, rank) in enumerate(rows):
        n, k = accepts.whole(layer, module) or (0, 0)
        need = rank * (n + k)
        if width < need:
            raise InvalidField(
                WEIGHTS,
                f"row {at}: {module} with rank {rank} has {need} numbers ({rank} x {k} and {n} x {rank}), "
                f"but rows are {width} wide",
            )
        row = values[at, :need]
        if not accepts.is_finite(row):
            raise InvalidField(WEIGHTS, f"row {at}: must hold finite numbers of the model's type only")
        a, b = row[: rank * k].view(rank, k), row[rank * k :].view(n, rank)
        updates += split_modules(Update(layer, module, a, b), accepts)
    if (place := duplicated_place(updates)) is not None:
        raise InvalidField(CONFIG, f"{place[1]} of layer {place[0]} is there twice")
    return updates


def _read_config(config: Tensor, accepts: Accepts) -> list[tuple[int, str, int]]:
    """(layer, module, rank) for each row."""
    if config.dtype != "INT32":
        raise InvalidField(CONFIG, "must be of type INT32")
    _check_shape(CONFIG, config, torch.int32, "must have the shape [rows, 3]", 3)
    if not accepts.shapes:
        raise InvalidField(CONFIG, "this model takes no adapters")
    if not 1 <= config.shape[0] <= len(accepts.shapes):
        raise InvalidField(CONFIG, f"must have 1 to {len(accepts.shapes)} rows")
    rows: list[tuple[int, str, int]] = []
    table = torch.frombuffer(bytearray(config.data), dtype=torch.int32).view(-1, 3).tolist()
    for at, (module_id, layer, rank) in enumerate(table):
        if not 0 <= module_id < len(MODULE_IDS):
            raise InvalidField(CONFIG, f"row {at}: the module id must be from 0 to {len(MODULE_IDS) - 1}")
        if not 0 <= layer < accepts.num_layers:
            raise InvalidField(CONFIG, f"row {at}: the layer must be from 0 to {accepts.num_layers - 1}")
        if not 1 <= rank <= accepts.max_rank:
            raise InvalidField(CONFIG, f"row {at}: the rank must be from 1 to {accepts.max_rank}")
        module = MODULE_IDS[module_id]
        if accepts.whole(layer, module) is None:
            raise InvalidField(
                CONFIG, f"row {at}: this model has no {module} (module id {module_id}) to adapt"
            )
        rows.append((layer, module, rank))
    return rows


def _check_shape(name: str, tensor: Tensor, dtype: torch.dtype, words: str, columns: int | None) -> None:
    shape = tensor.shape
    if len(shape) != 2 or min(shape) < 1 or (columns is not None and shape[1] != columns):
        raise InvalidField(name, words)
    if len(tensor.data) != math.prod(shape) * dtype.itemsize:
        raise InvalidField(name, f"must hold {math.prod(shape)} numbers of {dtype.itemsize} bytes")


def fingerprint(updates: Sequence[Update]) -> str:
    """A digest of the matrices; only equal matrices have equal digests."""
    digest = blake2b(digest_size=16)
    for update in sorted(updates, key=lambda each: each[:2]):
        digest.update(repr((update[:2], update.a.shape, update.b.shape, update.a.dtype)).encode())
        for tensor in update[2:]:
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def split_modules(update: Update, accepts: Accepts) -> Iterator[Update]:
    """Split `update` into one update for each of the modules that it joins side by side."""
    row = 0
    for module in SIDE_BY_SIDE.get(update.module, (update.module,)):
        n, _ = accepts.shapes[update.layer, module]
        yield Update(update.layer, module, update.a, update.b[row : row + n])
        row += n


def duplicated_place(updates: Sequence[Update]) -> tuple[int, str] | None:
    """A place (layer and module) with more than one update, if there is any."""
    seen: set[tuple[int, str]] = set()
    for layer, module, _, _ in updates:
        if (layer, module) in seen:
            return layer, module
        seen.add((layer, module))
    return None
