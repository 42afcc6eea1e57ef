"""Each pooling against its definition, on numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serve_app.engine.embedding.pooling import Pooler, shortened

STATES = torch.tensor([[1.0, 2.0], [3.0, -4.0], [5.0, 8.0]])
EXPECTED = {
    "cls": [1, 2],
    "mean": [3, 2],
    "max": [5, 8],
    "mean_sqrt_len": [9 / 3**0.5, 6 / 3**0.5],
    "weighted_mean": [(1 + 6 + 15) / 6, (2 - 8 + 24) / 6],
    "last": [5, 8],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_pooling_is_what_it_is_defined_to_be(name: str) -> None:
    pooler = Pooler([name], normalized=False)
    found = pooler.pool([STATES, STATES[:1]])
    np.testing.assert_allclose(found, [EXPECTED[name], [1, 2]], rtol=1e-6)


def test_several_poolings_stand_side_by_side() -> None:
    found = Pooler(["mean", "max"], normalized=False).pool([STATES])
    np.testing.assert_allclose(found, [[3, 2, 5, 8]])


def test_normalized_vectors_have_length_one() -> None:
    found = Pooler(["mean", "last"], normalized=True).pool([STATES, 2 * STATES])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1], rtol=1e-6)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_half_precision_is_pooled_in_full() -> None:
    states = torch.full((4096, 1), 1.001, dtype=torch.bfloat16)
    found = Pooler(["mean"], normalized=False).pool([states])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[1.0]], rtol=1e-3)


def test_a_shortened_vector_has_length_one_again() -> None:
    vectors = np.asarray([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], np.float32)
    found = shortened(vectors, 2)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_an_unknown_pooling_is_an_error() -> None:
    with pytest.raises(KeyError):
        Pooler(["sideways"], normalized=True)
