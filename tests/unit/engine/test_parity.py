"""Every supported architecture gives, through runner and paged attention, transformers' own logits."""

from __future__ import annotations

import pytest

from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.torch_gpu import TorchGpuAttention
from tests.support.tiny_models import ARCHITECTURES, check_parity, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_mixed_batches_give_the_logits_and_greedy_tokens_of_transformers(architecture: str) -> None:
    check_parity(tiny_model(architecture), ReferenceAttention())


# Grouped heads, a window, softcap, sinks, and keys wider than values.
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
def test_the_cuda_backend_gives_the_same(architecture: str) -> None:
    check_parity(tiny_model(architecture), TorchGpuAttention())
