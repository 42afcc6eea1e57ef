"""Every supported architecture gives, through runner and paged attention, transformers' own logits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from serve_app.engine.attention.cuda import CudaAttention
from serve_app.engine.attention.reference import ReferenceAttention
from tests.support.tiny_models import ARCHITECTURES, check_parity, tiny_model


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_mixed_batches_give_the_logits_and_greedy_tokens_of_transformers(architecture: str) -> None:
    check_parity(tiny_model(architecture), ReferenceAttention())


# Grouped heads, a window, softcap, sinks, and keys wider than values.
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_the_cuda_backend_gives_the_same(architecture: str) -> None:
    check_parity(tiny_model(architecture), CudaAttention())
