"""Attention within chunks and the temperatures of Llama 4, in any batch and any pieces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.chunked import within_chunks
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.torch_gpu import TorchGpuAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams
from tests.support.families import small_config
from tests.support.tiny_models import BLOCK, check_parity

CPU = torch.device("cpu")
BACKENDS: list[Callable[[], AttentionBackend]] = [ReferenceAttention, CpuAttention, TorchGpuAttention]


def llama4(chunk: int = 8) -> PreTrainedModel:
    config = small_config("llama4_text")
    config.attention_chunk_size = chunk
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return model.eval()


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int) -> torch.Tensor:
    """Attention of one whole sequence by a mask. q [T, H, D], k and v [T, Hkv, D]."""
    place = torch.arange(len(q))
    seen = (place[None] <= place[:, None]) & (place[None] // chunk == place[:, None] // chunk)
    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    return attend(q, k, v, attn_mask=seen, scale=1.0, enable_gqa=True).transpose(0, 1)


@given(
    chunk=st.sampled_from([4, 8, 12]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    cut=st.integers(1, 30),
)
@pytest.mark.parametrize("make", BACKENDS, ids=lambda make: make.__name__)
def test_rows_see_their_own_chunk_in_any_batch_and_any_pieces(
    make: Callable[[], AttentionBackend], chunk: int, lengths: list[int], cut: int
) -> None:
    generator = torch.Generator().manual_seed(chunk)
    backend, used = make(), 0
    backend.allocate((LayerSpec(2, 8, 8),), 32, BLOCK, torch.float32, CPU)
    texts, sequences = [], []
    for number, length in enumerate(lengths):
        texts.append([torch.randn(length, heads, 8, generator=generator) for heads in (4, 2, 2)])
        blocks = -(-length // BLOCK)
        table = list(range(used, used + blocks))
        used += blocks
        tokens = [0] * length
        sequences.append(Sequence(str(number), 0, length, tokens, SamplingParams(), 0, block_table=table))
    for start, stop in ((0, cut), (cut, 31)):  # two steps: what is before the cut, and the rest
        spans = [(s, start, min(stop, n)) for s, n in zip(sequences, lengths, strict=True) if n > start]
        if not spans:
            continue
        batch = build_batch([Chunk(s, a, b - a, a) for s, a, b in spans], BLOCK, CPU)
        q, k, v = (torch.cat([texts[int(s.request_id)][i][a:b] for s, a, b in spans]) for i in range(3))
        got = backend.forward(0, q, k, v, within_chunks(batch.context, chunk), scale=1.0)
        for rows, (sequence, a, b) in zip(got.split([b - a for _, a, b in spans]), spans, strict=True):
            whole = texts[int(sequence.request_id)]
            want = masked(whole[0], whole[1], whole[2], chunk)[a:b]
            torch.testing.assert_close(rows, want, rtol=0, atol=2e-6)


def test_a_model_gives_transformers_logits_over_several_chunks() -> None:
    check_parity(llama4(), CpuAttention())


def test_chunks_that_do_not_begin_with_a_block_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"set engine\.block_size to 16"):
        ModelRunner(
            llama4(48),
            backend=CpuAttention(),
            dtype=torch.float32,
            device=CPU,
            config=EngineConfig(block_size=32, num_blocks=4),
        )
