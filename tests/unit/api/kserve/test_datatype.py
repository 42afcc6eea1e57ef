"""Raw tensors: sizes checked, numbers read as what they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.kserve.datatype import (
    BF16,
    ELEMENTS,
    booleans,
    checked,
    floats,
    integers,
    strings,
    tensor_of_strings,
)
from serve_app.errors import InvalidField
from serve_app.types import Tensor


@pytest.mark.parametrize("datatype", ELEMENTS)
def test_the_data_has_the_size_of_the_shape(datatype: str) -> None:
    size = ELEMENTS[datatype].itemsize
    assert checked("x", datatype, [2, 3], bytes(6 * size)).shape == (2, 3)
    assert checked("x", datatype, [], bytes(size)).shape == ()
    assert checked("x", datatype, [0, 5], b"").data == b""
    for wrong in (6 * size - 1, 6 * size + 1, 0):
        with pytest.raises(InvalidField, match=r"^x: the shape needs"):
            checked("x", datatype, [2, 3], bytes(wrong))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_strings_come_back(items: list[str]) -> None:
    tensor = tensor_of_strings(items, (len(items),))
    assert strings("x", checked("x", "BYTES", [len(items)], tensor.data)) == items


@pytest.mark.parametrize(
    ("data", "count"),
    [(b"\x01", 1), (b"\x05\0\0\0ab", 1), (b"\xff\xff\xff\xff", 1), (b"\x01\0\0\0a", 2), (b"", 1)],
)
def test_strings_whose_lengths_are_wrong(data: bytes, count: int) -> None:
    with pytest.raises(InvalidField, match=r"^x: "):
        checked("x", "BYTES", [count], data)
    with pytest.raises(InvalidField, match="UTF-8"):
        strings("x", Tensor(dtype="BYTES", shape=(1,), data=b"\x01\0\0\0\xff"))


def test_floats_of_every_width_are_fp32() -> None:
    values = np.asarray([0.5, -2.0, 1.0], "<f4")
    halves = (values.view("<u4") >> 16).astype("<u2").tobytes()
    forms = {"FP16": values.astype("<f2").tobytes(), "FP64": values.astype("<f8").tobytes(), BF16: halves}
    for datatype, data in {**forms, "FP32": values.tobytes()}.items():
        assert floats("x", Tensor(dtype=datatype, shape=(3,), data=data)).tolist() == values.tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_finite_in_fp32_is_refused(value: float) -> None:
    tensor = Tensor(dtype="FP64", shape=(1,), data=np.asarray([value], "<f8").tobytes())
    with pytest.raises(InvalidField, match=r"^x: must hold finite numbers"):
        floats("x", tensor)


def test_minus_infinity_may_exclude() -> None:
    def tensor(value: float) -> Tensor:
        return Tensor(dtype="FP32", shape=(1,), data=np.asarray([value], "<f4").tobytes())

    assert floats("x", tensor(-np.inf), may_exclude=True).tolist() == [-np.inf]
    for other in (np.inf, np.nan):
        with pytest.raises(InvalidField):
            floats("x", tensor(other), may_exclude=True)


def test_integers_have_bounds() -> None:
    tensor = Tensor(dtype="UINT64", shape=(2,), data=np.asarray([0, 2**64 - 1], "<u8").tobytes())
    assert integers("x", tensor, 0, 2**64 - 1).tolist() == [0, 2**64 - 1]
    with pytest.raises(InvalidField, match=r"^x: must hold integers from 0 to 5"):
        integers("x", tensor, 0, 5)


def test_a_bool_is_0_or_1() -> None:
    assert booleans("x", Tensor(dtype="BOOL", shape=(2,), data=b"\0\1")) == [False, True]
    with pytest.raises(InvalidField, match="0 or 1"):
        booleans("x", Tensor(dtype="BOOL", shape=(1,), data=b"\2"))


def test_an_unknown_datatype_or_shape_is_refused() -> None:
    for datatype in ("FP8", "", None, 5):
        with pytest.raises(InvalidField, match="datatype must be one of"):
            checked("x", datatype, [1], b"\0")
    for shape in ([-1], [2**31], [True], [1.0], ["1"], [1] * 9):
        with pytest.raises(InvalidField, match="shape must be a list"):
            checked("x", "INT8", shape, b"\0")
