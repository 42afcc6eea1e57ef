"""Tensors of an answer: cut where the answer is cut, joined where it comes whole."""

from __future__ import annotations

import numpy as np

from serve_app.replica.output.tensor_rows import joined, of_tokens
from serve_app.types import Tensor


def logits(first: int, count: int) -> Tensor:
    rows = np.arange(first, first + count, dtype="<f4")[:, None].repeat(3, axis=1)
    return Tensor(dtype="FP32", shape=rows.shape, data=rows.tobytes())


def test_tokens_take_their_own_rows() -> None:
    step = {"generation_logits": logits(0, 4), "context_logits": logits(50, 2)}
    assert of_tokens(step, 0, 2) == {"generation_logits": logits(0, 2), "context_logits": logits(50, 2)}
    assert of_tokens(step, 2, 4) == {"generation_logits": logits(2, 2)}
    assert of_tokens(step, 3, 9) == {"generation_logits": logits(3, 1)}
    assert of_tokens(step, 0, 0) == {"context_logits": logits(50, 2)}


def test_steps_are_joined() -> None:
    steps = [
        {"context_logits": logits(9, 2), "generation_logits": logits(0, 1)},
        {"generation_logits": logits(1, 3)},
    ]
    assert joined(steps) == {"context_logits": logits(9, 2), "generation_logits": logits(0, 4)}
    assert joined([]) == {}
