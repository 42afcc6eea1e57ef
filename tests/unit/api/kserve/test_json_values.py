"""Tensors as JSON: numbers as short as they can be and never another number; lists of any nesting."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.kserve.datatype import ELEMENTS, tensor_of, tensor_of_strings
from serve_app.api.kserve.json_values import flat, shape_of, single_to_json, tensor_from_json, to_json
from serve_app.errors import InvalidField
from serve_app.limits import MAX_JSON_NUMBERS
from serve_app.types import Tensor

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def written(values: Any, datatype: str = "FP32") -> str:
    array = np.asarray(values, ELEMENTS[datatype])
    return bytes(to_json("x", tensor_of(datatype, array, array.shape))).decode()


@given(st.lists(FINITE, max_size=40))
def test_every_fp32_comes_back(values: list[float]) -> None:
    assert np.asarray(json.loads(written(values)), "<f4").tolist() == values


@given(st.lists(FINITE.filter(lambda x: x == 0 or 1e-10 < abs(x) < 1e15), max_size=40))
def test_usual_numbers_have_their_shortest_form(values: list[float]) -> None:
    shortest = [float(str(np.float32(value))) for value in values]
    assert json.loads(written(values)) == shortest


def test_logprobs_look_as_they_are_written_down() -> None:
    assert written([-0.41, -1.07, -0.02, 0.0, -0.0, 1.5, 16777216.0]) == (
        "[-0.41,-1.07,-0.02,0.0,-0.0,1.5,16777216.0]"
    )


def test_long_lists_are_written_in_pieces_that_do_not_show() -> None:
    values = np.arange(40_000)
    assert json.loads(written(values, "INT32")) == values.tolist()
    assert written([], "INT64") == "[]"


def test_too_many_numbers_are_for_binary_data() -> None:
    many = Tensor(dtype="FP32", shape=(MAX_JSON_NUMBERS + 1,), data=bytes(4 * (MAX_JSON_NUMBERS + 1)))
    with pytest.raises(InvalidField, match=r"context_logits: .* ask for binary_data"):
        to_json("context_logits", many)


def test_a_single_element_is_bare() -> None:
    assert bytes(single_to_json("x", tensor_of("INT32", [5], (1, 1)))) == b"5"
    assert bytes(single_to_json("x", tensor_of("INT32", [5, 6], (1, 2)))) == b"[5,6]"
    assert bytes(single_to_json("x", tensor_of("INT32", [], (1, 0)))) == b"[]"
    assert bytes(single_to_json("x", tensor_of_strings(['a"b'], (1,)))) == b'"a\\"b"'
    assert bytes(single_to_json("x", tensor_of("BOOL", [True], (1,)))) == b"true"


@given(st.recursive(st.integers(), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=20))
def test_flat_keeps_the_order_of_elements(value: Any) -> None:
    def walk(item: Any) -> list[int]:
        return [leaf for inner in item for leaf in walk(inner)] if isinstance(item, list) else [item]

    data = value if isinstance(value, list) else [value]
    assert flat(data) == walk(data)


def test_shapes_are_those_of_the_first_elements() -> None:
    values: list[Any] = [5, [5], [[5, 6]], [[[5], [6]]], [], [[]]]
    assert [shape_of(value) for value in values] == [
        (), (1,), (1, 2), (1, 2, 1), (0,), (1, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("datatype", "inside", "beyond"),
    [
        ("INT8", [-128, 127], [-129, 128]),
        ("UINT8", [0, 255], [-1, 256]),
        ("INT32", [-(2**31), 2**31 - 1, 3.0], [2**31, 3.5, True, "3"]),
        ("UINT64", [0, 2**64 - 1], [2**64, -1]),
        ("INT64", [-(2**63), 2**63 - 1], [2**63]),
        ("FP16", [65_504, -65_504.0], [65_505, True, "1"]),
        ("FP32", [3.4028234663852886e38], [3.5e38, 10**400]),
        ("FP64", [1e308, 10**300], [10**400]),
        ("BOOL", [True, False], [0, 1, "true"]),
        ("BYTES", ["", "ü"], [5, True]),
    ],
)
def test_bounds_of_every_datatype(datatype: str, inside: list[Any], beyond: list[Any]) -> None:
    for value in inside:
        assert tensor_from_json("x", datatype, [1], [value]).dtype == datatype
    for value in beyond:
        with pytest.raises(InvalidField, match="x: data must hold"):
            tensor_from_json("x", datatype, [1], [value])
