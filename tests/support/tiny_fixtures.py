"""Fixtures of tests that compute with a tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny Llama and its tokenizer."""
    from tests.support.tiny_llama import make_tiny_llama  # torch comes with it

    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch computes on one thread, which is faster for tiny models."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
