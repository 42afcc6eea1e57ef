"""The oracle itself, held against torch's own attention and against arithmetic done by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

CPU = torch.device("cpu")
BLOCK = 4


def context(*parts: tuple[int, int, list[int]]) -> ForwardContext:
    """Of (start, length, block table) for each sequence."""
    chunks = []
    for start, length, table in parts:
        sequence = Sequence(
            request_id="r",
            index=0,
            prompt_len=start + length,
            token_ids=[0] * (start + length),
            sampling=SamplingParams(),
            seed=0,
            block_table=table,
        )
        chunks.append(Chunk(sequence, start, length, start))
    return build_batch(chunks, BLOCK, CPU).context


def backend(kv_heads: int = 2, key_dim: int = 8, value_dim: int = 8, layers: int = 1) -> ReferenceAttention:
    made = ReferenceAttention()
    made.allocate((LayerSpec(kv_heads, key_dim, value_dim),) * layers, 16, BLOCK, torch.float32, CPU)
    return made


causal: Callable[..., torch.Tensor] = partial(scaled_dot_product_attention, is_causal=True)


def test_two_packed_sequences_each_see_only_their_own_tokens() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(12, 4, 8), torch.randn(12, 2, 8), torch.randn(12, 2, 8)
    got = backend().forward(0, q, k, v, context((0, 7, [3, 1]), (0, 5, [2, 6])), scale=0.3)
    for rows in (slice(0, 7), slice(7, 12)):
        part = (t[rows].transpose(0, 1)[None] for t in (q, k, v))
        want = causal(*part, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(got[rows], want[0].transpose(0, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_chunks_and_decodes_give_what_one_prefill_gives(window: int | None) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(11, 4, 8), torch.randn(11, 2, 8), torch.randn(11, 2, 8)
    table = [5, 0, 9]
    whole = backend().forward(0, q, k, v, context((0, 11, table)), scale=0.3, window=window)
    paged, rows = backend(), []
    for start, length in ((0, 5), (5, 4), (9, 1), (10, 1)):
        part = slice(start, start + length)
        step = context((start, length, table))
        rows.append(paged.forward(0, q[part], k[part], v[part], step, scale=0.3, window=window))
    torch.testing.assert_close(torch.cat(rows), whole, rtol=0, atol=1e-6)


def test_a_window_of_one_sees_the_token_itself() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(6, 2, 8), torch.randn(6, 2, 8), torch.randn(6, 2, 8)
    got = backend().forward(0, q, k, v, context((0, 6, [1, 2])), scale=1.0, window=1)
    torch.testing.assert_close(got, v)


def test_a_sink_takes_its_share_and_adds_no_value() -> None:
    q, k, v = torch.zeros(2, 2, 8), torch.zeros(2, 2, 8), torch.ones(2, 2, 8)
    sinks = torch.tensor([0.0, math.log(3.0)])
    got = backend().forward(0, q, k, v, context((0, 2, [4])), scale=1.0, sinks=sinks)
    # All scores are 0: a row with n tokens weighs n against exp(sink).
    want = torch.tensor([[1 / 2, 1 / 4], [2 / 3, 2 / 5]])
    torch.testing.assert_close(got, want[..., None].expand(2, 2, 8))


def test_softcap_bounds_the_scores() -> None:
    q, k = torch.full((2, 1, 4), 100.0), torch.tensor([[[-100.0] * 4], [[100.0] * 4]])
    v = torch.tensor([[[0.0]], [[1.0]]])
    got = backend(1, 4, 1).forward(0, q, k, v, context((0, 2, [4])), scale=1.0, softcap=2.0)
    # Capped, the scores are -2 and 2: the first token keeps a weight of 1 / (1 + e^4).
    torch.testing.assert_close(got.flatten(), torch.tensor([0.0, 1 - 1 / (1 + math.exp(4))]))


def test_keys_and_values_may_differ_in_size() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 4, 24), torch.randn(5, 4, 24), torch.randn(5, 4, 16)
    got = backend(4, 24, 16).forward(0, q, k, v, context((0, 5, [1, 2])), scale=0.2)
    want = causal(*(t.transpose(0, 1)[None] for t in (q, k, v)), scale=0.2)
    torch.testing.assert_close(got, want[0].transpose(0, 1), rtol=0, atol=1e-6)


def test_latent_values_are_the_first_numbers_of_keys() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(6, 4, 24), torch.randn(6, 1, 24)
    latent = ReferenceAttention()
    latent.allocate((LayerSpec(1, 24, 16, latent=True),), 16, BLOCK, torch.float32, CPU)
    for start, length in ((0, 5), (5, 1)):
        part, step = slice(start, start + length), context((start, length, [1, 2]))
        got = latent.forward(0, q[part], k[part], k[part, :, :16], step, scale=0.2, latent=True)
    want = backend(1, 24, 16).forward(0, q, k, k[..., :16], context((0, 6, [1, 2])), scale=0.2)
    torch.testing.assert_close(got[0], want[5], rtol=0, atol=1e-6)


def test_a_copied_block_answers_like_its_source_in_every_layer() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(7, 2, 8), torch.randn(7, 2, 8), torch.randn(7, 2, 8)
    paged = backend(layers=2)
    one = torch.randn(1, 2, 8)
    for layer in (0, 1):
        paged.forward(layer, q, k, v, context((0, 7, [3, 1])), scale=0.3)
    paged.copy_blocks([(1, 10), (3, 8)])
    for layer in (0, 1):
        copied = paged.forward(layer, one, one, one, context((7, 1, [8, 10])), scale=0.3)
        source = paged.forward(layer, one, one, one, context((7, 1, [3, 1])), scale=0.3)
        torch.testing.assert_close(copied, source, rtol=0, atol=0)
