"""JSON values of tensors: scalars, flat lists, nested lists. A tensor's name fixes its type and shape."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

from serve_app.api.dialects.triton.request.inputs import ACCEPTED, RENAMED, Input, Rank
from serve_app.api.dialects.triton.request.row import unexpected
from serve_app.api.kserve.datatype import BYTES
from serve_app.api.kserve.json_values import encoded, flat, shape_of
from serve_app.errors import InvalidField
from serve_app.types import Tensor

# A flat table -> the tensor that numbers the table's rows, and that tensor's elements per row.
_ROWS_OF: Final = {
    "draft_logits": ("draft_input_ids", 1),
    "lora_weights": ("lora_config", 3),
}


def tensors_of_values(
    values: Mapping[str, Any], model: str, table: Mapping[str, Input] = ACCEPTED
) -> dict[str, Tensor]:
    """The values, by the client's names, as tensors of `table` under the same names.

    Raises InvalidField, which names the tensor, even if that name is unknown.
    """
    for name in values:
        if RENAMED.get(name, name) not in table:
            raise unexpected(name, model)
    return {
        name: _tensor(name, table[RENAMED.get(name, name)], value, values) for name, value in values.items()
    }


def _tensor(called: str, spec: Input, value: Any, values: Mapping[str, Any]) -> Tensor:
    elements = flat(value) if isinstance(value, list) else [value]
    shape = _shape(called, spec, value, elements, values)
    if prod(shape) != len(elements):
        raise InvalidField(called, "must be a list whose inner lists are equally long")
    datatype = spec.datatype
    if datatype == "FP16":
        datatype = "FP32"  # JSON's numbers; the model's own type is made of them later
    elif datatype == BYTES and not all(type(element) is str for element in elements):
        more = " or a list of strings" if spec.rank is Rank.VECTOR else ""
        raise InvalidField(called, f"must be a string{more}")
    elif "BOOL" in spec.also and elements and type(elements[0]) is bool:
        datatype = "BOOL"
    return encoded(called, datatype, shape, elements)


def _shape(
    called: str, spec: Input, value: Any, elements: list[Any], values: Mapping[str, Any]
) -> tuple[int, ...]:
    count, nested = len(elements), shape_of(value)
    if spec.rank is Rank.SCALAR:
        if count != 1:
            raise InvalidField(called, "must be one value")
        return (1,)
    if spec.rank is Rank.VECTOR:
        return nested or (1,)
    if len(nested) > 1:
        return nested
    rows, columns = spec.shape
    if rows == -1 and columns != -1:
        rows = count // columns
    elif rows == -1 and spec.name in _ROWS_OF:
        other, each = _ROWS_OF[spec.name]
        given = values.get(other)
        rows = len(flat(given)) // each if isinstance(given, list) else -1
    if rows == -1 or (count % rows if rows else count):
        raise InvalidField(called, "must be a list of lists, one for each row")
    return (rows, count // rows if rows else 0)
