"""A hybrid's layers with a gated delta rule are fused, and give the logits of transformers' own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.numbering import Numbered
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.cpu.decoder import FusedLayer
from serve_app.engine.cpu.delta import DeltaLayer
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import native
from serve_app.engine.kernels.delta import DeltaRule, DeltaWeights
from serve_app.engine.kernels.recurrence import Convolution
from serve_app.engine.kernels.spans import Spans
from serve_app.engine.model.forward import ATTENTION_NAME, active
from tests.support.threads import of_threads
from tests.support.tiny_states import tiny_stateful

TOKENS = 24


def context(tokens: int) -> ForwardContext:
    places = torch.arange(tokens)
    return ForwardContext(
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        context_lens=torch.tensor([tokens], dtype=torch.int32),
        block_tables=torch.tensor([[0, 1]], dtype=torch.int32),
        slots=places,
        query_lens=(tokens,),
        lens=(tokens,),
        block_size=16,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_hybrid_gives_the_logits_of_the_original(dtype: torch.dtype) -> None:
    """In bfloat16 it is nearer to the same weights in float32 than the original, which rounds more often."""
    if native() is None:
        pytest.skip("no native kernels on this machine")
    original = copy.deepcopy(tiny_stateful("qwen3_5_text")).to(dtype)
    fused = accelerate_cpu(copy.deepcopy(original), dtype)
    (stack,) = fused.get_decoder().layers
    assert [type(layer) for layer in stack.layers] == [DeltaLayer, FusedLayer] * 2
    want = logits(copy.deepcopy(original).float(), ReferenceAttention())
    largest = (
        1e-4 * want.norm()
        if dtype == torch.float32
        else (logits(original, ReferenceAttention()) - want).norm()
    )
    for backend in (ReferenceAttention(), CpuAttention()):
        assert 0 < (logits(fused, backend) - want).norm() < largest


def logits(model: PreTrainedModel, backend: AttentionBackend) -> torch.Tensor:
    """Of one sequence from its first token on."""
    model.set_attn_implementation(ATTENTION_NAME)
    ids = torch.randint(0, 96, (TOKENS,), generator=torch.Generator().manual_seed(2))
    backend.allocate((LayerSpec(2, 16, 16),) * 2, 2, 16, model.dtype, torch.device("cpu"))
    with torch.inference_mode(), active(Numbered(backend, (1, 3)), context(TOKENS)):
        out = model(input_ids=ids[None], position_ids=torch.arange(TOKENS)[None], use_cache=False)
    return out.logits[0].float()


def test_bits_do_not_depend_on_pieces_neighbours_or_threads() -> None:
    """One call for a batch of two sequences, cut in two, beside calls for each sequence alone."""
    kernels = native()
    if kernels is None:
        pytest.skip("no native kernels on this machine")
    random = torch.Generator().manual_seed(0)
    heads, groups, keys, values, channels = 4, 2, 16, 48, 2 * 2 * 16 + 4 * 48
    weights = DeltaWeights(
        factors=torch.randn(4, channels, generator=random),
        rates=-torch.rand(heads, generator=random),
        biases=torch.randn(heads, generator=random),
        norm=torch.rand(values, generator=random),
        eps=1e-6,
        groups=groups,
        keys=keys,
    )
    rows = torch.randn(60, channels + heads * (values + 2), generator=random)  # 41 of one, 19 of the other

    def run(threads: int, rows: torch.Tensor, *waves: Sequence[tuple[int, int, int, int]]) -> torch.Tensor:
        windows, pool = torch.zeros(6, 3, channels), torch.zeros(6, heads, keys, values)
        rule = DeltaRule(weights, rows, windows, pool, torch.zeros(len(rows), heads, values))
        with of_threads(threads):
            for spans in waves:
                kernels.over_spans(rule, Spans.of(spans))
        return rule.out

    want = torch.cat([run(1, rows[:41], [(0, 41, 0, 1)]), run(1, rows[41:], [(0, 19, 0, 1)])])
    pieces = [[(0, 2, 0, 1), (41, 17, 0, 2)], [(2, 30, 1, 3), (58, 1, 2, 4)], [(32, 9, 3, 5), (59, 1, 4, 2)]]
    for threads in (1, 3):
        assert torch.equal(run(threads, rows, *pieces), want)


def test_arguments_that_do_not_fit_are_refused() -> None:
    kernels = native()
    if kernels is None:
        pytest.skip("no native kernels on this machine")
    x, pool = torch.zeros(3, 8), torch.zeros(2, 3, 8)
    right = Convolution(x, torch.zeros(8, 4), None, True, pool, torch.empty(3, 8))
    kernels.over_spans(right, Spans.of([(0, 3, 0, 1)]))
    for wrong in (replace(right, pool=pool[:, 1:]), replace(right, out=torch.empty(3, 8).bfloat16())):
        with pytest.raises(ValueError, match="arguments of convolve do not fit"):
            kernels.over_spans(wrong, Spans.of([(0, 3, 0, 1)]))
    for spans in ([(0, 4, 0, 1)], [(0, 3, 0, 2)]):
        with pytest.raises(ValueError, match="do not fit each other, or the spans"):
            kernels.over_spans(right, Spans.of(spans))
    with pytest.raises(ValueError, match="lies outside"):
        Spans.of([(0, 3, -1, 1)])
