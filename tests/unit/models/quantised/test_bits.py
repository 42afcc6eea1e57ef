"""Codes of any width come out of their words as they went in, for any shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.models.quantised.bits import nibbles, unpack, words_for
from tests.support.packers import expand
from tests.support.quantised import bit_stream


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(1, 8), rows=st.integers(1, 5), count=st.integers(1, 130), seed=st.integers(0, 2**16))
def test_codes_of_any_width_are_found_in_their_words(bits: int, rows: int, count: int, seed: int) -> None:
    codes = torch.randint(2**bits, (rows, count), generator=torch.Generator().manual_seed(seed))
    words = bit_stream(codes, bits)
    assert words.shape == (rows, words_for(count, bits))
    assert torch.equal(unpack(words, bits, count), codes.to(torch.uint8))


@given(low=st.integers(0, 15), high=st.integers(0, 15))
def test_either_half_of_a_byte_may_come_first(low: int, high: int) -> None:
    packed = torch.tensor([[low | high << 4]], dtype=torch.uint8)
    assert nibbles(packed).tolist() == [[low, high]]
    assert nibbles(packed, high_first=True).tolist() == [[high, low]]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    tall=st.integers(1, 17),
    wide=st.integers(1, 17),
    ordered=st.booleans(),
)
def test_blocks_may_be_of_any_size_and_the_last_ones_partial(
    rows: int, columns: int, tall: int, wide: int, ordered: bool
) -> None:
    draw = torch.Generator().manual_seed(rows * columns)
    shape = (-(-rows // tall), -(-columns // wide))
    codes = torch.randint(-128, 128, (rows, columns), generator=draw, dtype=torch.int8)
    scales, zeros = torch.rand(shape, generator=draw) + 0.1, torch.randint(0, 16, shape, generator=draw)
    order = torch.randint(shape[1], (columns,), generator=draw)
    matrix = QuantisedMatrix(codes, scales, (tall, wide), zeros, None if ordered else order)
    every = (
        [expand(each, (tall, wide), codes.shape) for each in (scales, zeros)]
        if ordered
        else [each.repeat_interleave(tall, 0)[:rows][:, order] for each in (scales, zeros)]
    )
    assert torch.equal(matrix.dequantise(torch.float32), (codes - every[1]) * every[0])


def test_rows_beyond_what_is_computed_at_once_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = QuantisedMatrix(torch.randint(0, 9, (50, 8)), torch.rand(7, 2), (8, 4))
    whole = matrix.dequantise(torch.bfloat16)
    monkeypatch.setattr("serve_app.codes.matrix._AT_ONCE", 24)
    assert torch.equal(matrix.dequantise(torch.bfloat16), whole)
