"""A batch of prompts in one set of tensors -> the tensors of each of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from serve_app import limits
from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.api.kserve.datatype import BYTES, strings, tensor_of_strings
from serve_app.errors import InvalidField
from serve_app.types import Tensor

# Inputs that shape the one answer to a batch. They must be equal in all rows.
_ALIKE: Final = ("beam_width", "num_return_sequences", "pad_id", "end_id")
_ALIKE_FLAGS: Final = (
    "streaming",
    "exclude_input_in_output",
    "return_log_probs",
    "return_context_logits",
    "return_generation_logits",
    "return_perf_metrics",
    "return_num_input_tokens",
    "return_num_output_tokens",
)


def rows_of(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], leading: str = "input_ids"
) -> list[Mapping[str, Tensor]]:
    """The tensors of each row. A tensor `leading` of shape (B, n) with B > 1 makes a batch of B.

    Raises InvalidField if a tensor lacks the batch's leading dimension.
    """
    first = tensors.get(leading)
    count = first.shape[0] if first is not None and len(first.shape) == 2 else 1
    if count == 1 or first is None:
        return [tensors]
    if not 1 <= count <= limits.MAX_PROMPTS:
        raise InvalidField(leading, f"a batch must have 1 to {limits.MAX_PROMPTS} rows")
    rows: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        if not tensor.shape or tensor.shape[0] != count:
            raise InvalidField(
                names.get(name, name), f"must have the leading dimension {count}, as {leading} has"
            )
        for row, part in zip(rows, _parts(name, tensor), strict=True):
            row[name] = part
    return [*rows]


def check_alike(rows: Sequence[BatchRow]) -> None:
    """Raises InvalidField if the rows of a batch differ in an input that shapes their common answer."""
    for name in _ALIKE:
        if len({row.integer(name) for row in rows}) > 1:
            raise rows[0].refused(name, "must be the same in all rows of a batch")
    for name in _ALIKE_FLAGS:
        if len({row.flag(name) for row in rows}) > 1:
            raise rows[0].refused(name, "must be the same in all rows of a batch")


def _parts(name: str, tensor: Tensor) -> list[Tensor]:
    """The tensor cut along its first dimension, which is at least 1."""
    count, shape = tensor.shape[0], tensor.shape[1:]
    if tensor.dtype == BYTES:
        items = strings(name, tensor)
        each = len(items) // count
        return [tensor_of_strings(items[i * each : (i + 1) * each], shape) for i in range(count)]
    size = len(tensor.data) // count
    return [
        Tensor(dtype=tensor.dtype, shape=shape, data=tensor.data[i * size : (i + 1) * size])
        for i in range(count)
    ]
