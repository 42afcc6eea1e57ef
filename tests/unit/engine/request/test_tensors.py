"""Tensors of requests: which are refused, and that numbers survive both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serve_app.engine.request.tensors import from_rows, row_bytes, to_torch
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sequence import Sequence
from serve_app.errors import InvalidField
from serve_app.types import SamplingParams, Tensor
from tests.support.fakes import VOCAB_SIZE, greedy_tokens
from tests.unit.engine.test_engine import Bench

INF = float("inf")


def fp32(*values: float, shape: tuple[int, ...] | None = None) -> Tensor:
    data = np.array(values, "<f4")
    return Tensor(dtype="FP32", shape=shape or data.shape, data=data.tobytes())


@pytest.mark.parametrize(("name", "dtype"), [("FP32", torch.float32), ("FP16", torch.float16)])
def test_numbers_become_torch(name: str, dtype: torch.dtype) -> None:
    values = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=dtype)
    read = to_torch(Tensor(dtype=name, shape=(2, 2), data=values.numpy().tobytes()))
    assert read.dtype == dtype
    assert torch.equal(read, values)


def test_rows_are_put_together() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    tensor = from_rows([row_bytes(row) for row in logits])
    assert tensor.shape == (5, 7)
    assert torch.equal(to_torch(tensor), logits)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (fp32(*[0.0] * (VOCAB_SIZE - 1)), "shape"),
        (fp32(*[0.0] * VOCAB_SIZE, shape=(1, VOCAB_SIZE)), "shape"),
        (Tensor(dtype="FP32", shape=(VOCAB_SIZE,), data=b"1234"), "bytes"),
        (Tensor(dtype="INT32", shape=(VOCAB_SIZE,), data=bytes(4 * VOCAB_SIZE)), "FP32"),
        (fp32(*[0.0] * (VOCAB_SIZE - 1), INF), "finite"),
        (fp32(*[0.0] * (VOCAB_SIZE - 1), float("nan")), "finite"),
    ],
)
def test_a_bad_bias_is_refused(bias: Tensor, message: str) -> None:
    with pytest.raises(InvalidField, match=f"bias.*{message}"):
        Bench().add("a", bias=bias)


def test_a_bias_is_added_before_everything_else() -> None:
    logits = torch.tensor([[1.0, 2.0, -INF, 0.0]])
    line = Sequence(
        "r",
        0,
        1,
        [0],
        SamplingParams(temperature=0.0, repetition_penalty=4.0),
        0,
        bias=torch.tensor([6, 0, 99, 3.0]),
    )
    # 7 / 4 < 3 < inf: the penalty sees the biased logit, and what the model rules out stays so.
    assert Sampler(4, frozenset()).sample(logits, [line])[0].token_id == 3


def test_a_biased_row_leaves_its_neighbours_alone() -> None:
    bench = Bench()
    bias = [0.0] * VOCAB_SIZE
    bias[5] = 100.0
    bench.add("free")
    bench.add("biased", bias=fp32(*bias))
    bench.drain()
    assert bench.tokens["free", 0] == greedy_tokens((1, 2, 3), 6)
    assert bench.tokens["biased", 0] == [5] * 6
