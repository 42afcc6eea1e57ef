"""On a GPU: the CUDA backend equals the reference, and the models equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.torch_gpu import TorchGpuAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.model.memory import free_memory
from serve_app.engine.sequence import Chunk
from tests.support.tiny_models import ARCHITECTURES, check_parity, make_sequence, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
BLOCK, HEADS = 32, 16


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_mixed_batches_give_the_logits_and_greedy_tokens_of_transformers(architecture: str) -> None:
    check_parity(tiny_model(architecture).to(CUDA), TorchGpuAttention(), tolerance=1e-4)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.03), (torch.float16, 0.005)]
)
@pytest.mark.parametrize("shape", [(2, 128, 128), (16, 64, 64), (16, 192, 128)], ids=str)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("special", [False, True], ids=["fused", "softcap and sinks"])
def test_a_mixed_step_of_real_sizes_equals_the_reference(
    dtype: torch.dtype, tolerance: float, shape: tuple[int, int, int], window: int | None, special: bool
) -> None:
    torch.manual_seed(0)
    spec = LayerSpec(*shape)
    options: dict[str, Any] = {"scale": spec.key_dim**-0.5, "window": window}
    if special:
        options |= {"softcap": 3.0, "sinks": torch.randn(HEADS, device=CUDA, dtype=dtype)}
    lengths = (300, 257, 31, 64)  # decodes of the first three, a second chunk of the last
    tables = torch.randperm(64, generator=torch.Generator().manual_seed(0)).split(16)
    sequences = [make_sequence(str(i), [0] * 512, tables[i].tolist()) for i in range(4)]
    backends: list[AttentionBackend] = [ReferenceAttention(), TorchGpuAttention()]
    for one in backends:
        one.allocate((spec,), 64, BLOCK, dtype, CUDA)
    for chunks in (
        [Chunk(s, 0, n, n) for s, n in zip(sequences, lengths, strict=True)],
        [Chunk(s, n, 1, n) for s, n in zip(sequences[:3], lengths, strict=False)]
        + [Chunk(sequences[3], 64, 130, 194)],
    ):
        context = build_batch(chunks, BLOCK, CUDA).context
        tokens = sum(context.query_lens)
        q = torch.randn(tokens, HEADS, spec.key_dim, device=CUDA, dtype=dtype)
        k = torch.randn(tokens, spec.num_kv_heads, spec.key_dim, device=CUDA, dtype=dtype)
        v = torch.randn(tokens, spec.num_kv_heads, spec.value_dim, device=CUDA, dtype=dtype)
        want, got = (one.forward(0, q, k, v, context, **options) for one in backends)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_free_memory_is_the_devices() -> None:
    assert 0 < free_memory(CUDA) <= torch.cuda.get_device_properties(CUDA).total_memory
