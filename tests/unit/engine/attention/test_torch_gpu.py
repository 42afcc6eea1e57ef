"""The CUDA backend's mathematics, on the CPU: equal to the reference in every option and any mix."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.select import make_backend
from serve_app.engine.attention.torch_gpu import TorchGpuAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

CPU = torch.device("cpu")
BLOCK, BLOCKS, HEADS = 4, 32, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all": {"window": 3, "softcap": 1.5, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}
# One tuple a step: the (sequence, tokens) that it computes.
STEPS = (
    ((0, 6), (1, 1), (2, 9)),
    ((0, 1), (1, 1), (2, 1)),
    ((1, 3), (0, 1), (2, 4)),
    ((2, 1), (1, 1)),
    ((0, 8),),
)


def sequences() -> list[Sequence]:
    """Three with scattered blocks; blocks 30 and 31 stay free."""
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3)).tolist()
    return [
        Sequence(
            request_id=str(i),
            index=0,
            prompt_len=40,
            token_ids=[0] * 40,
            sampling=SamplingParams(),
            seed=0,
            block_table=order[i * 10 : i * 10 + 10],
        )
        for i in range(3)
    ]


LATENT = (1, 24, 16)


@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 8, 8), (1, 8, 8), (4, 24, 16), LATENT], ids=str)
@pytest.mark.parametrize("option", sorted(OPTIONS))
@pytest.mark.parametrize("codes", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_every_mix_of_chunks_and_decodes_equals_the_reference(
    option: str, shape: tuple[int, int, int], codes: torch.dtype | None
) -> None:
    torch.manual_seed(0)
    spec = LayerSpec(*shape, latent=shape is LATENT)
    if spec.latent and codes:
        pytest.skip("codes have no latent values")
    backends: list[AttentionBackend] = [ReferenceAttention(), TorchGpuAttention()]
    for one in backends:
        one.allocate((spec, spec), BLOCKS, BLOCK, torch.float32, CPU, codes=codes)
    running = sequences()
    for step in STEPS:
        chunks = []
        for index, length in step:
            start = running[index].num_computed
            chunks.append(Chunk(running[index], start, length, start + length))
            running[index].num_computed += length
        context = build_batch(chunks, BLOCK, CPU).context
        tokens = context.slots.shape[0]
        for layer in (0, 1):
            q = torch.randn(tokens, HEADS, spec.key_dim)
            k = torch.randn(tokens, spec.num_kv_heads, spec.key_dim)
            v = torch.randn(tokens, spec.num_kv_heads, spec.value_dim)
            options = OPTIONS[option]
            if spec.latent:
                v, options = k[..., : spec.value_dim], {**options, "latent": True}
            want, got = (one.forward(layer, q, k, v, context, scale=0.3, **options) for one in backends)
            torch.testing.assert_close(got, want, rtol=0, atol=2e-6)
        for one in backends:  # a copy must not be felt: move the first sequence's first block
            one.copy_blocks([(running[0].block_table[0], 31 if step is STEPS[0] else 30)])
        running[0].block_table[0] = 31 if step is STEPS[0] else 30


@pytest.mark.parametrize("option", sorted(OPTIONS))
@pytest.mark.parametrize("kind", [ReferenceAttention, TorchGpuAttention])
@pytest.mark.parametrize("codes", [None, torch.int8], ids=str)
def test_every_tensor_of_a_step_is_on_the_models_device(
    kind: type[AttentionBackend], option: str, codes: torch.dtype | None
) -> None:
    """No operation takes tensors of two devices; "meta" is one on every machine, and holds no numbers."""
    device = torch.device("meta")
    backend = kind()
    backend.allocate((LayerSpec(2, 8, 8),), BLOCKS, BLOCK, torch.float32, device, codes=codes)
    options = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in OPTIONS[option].items()
    }
    first, second, _ = sequences()
    for chunks in (
        (Chunk(first, 0, 6, 6), Chunk(second, 0, 1, 1)),
        (Chunk(first, 6, 1, 7), Chunk(second, 1, 1, 2)),
    ):
        context = build_batch(chunks, BLOCK, device).context
        q, k, v = (torch.randn(len(context.slots), heads, 8, device=device) for heads in (HEADS, 2, 2))
        assert backend.forward(0, q, k, v, context, scale=0.3, **options).device == device
    backend.copy_blocks([(first.block_table[0], 31)])


def test_no_plan_is_made_for_every_new_shape() -> None:
    TorchGpuAttention()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("option", ["plain", "all"])
@pytest.mark.parametrize("kind", [ReferenceAttention, TorchGpuAttention])
@pytest.mark.parametrize("codes", [None, torch.int8], ids=str)
def test_what_a_broken_request_left_in_a_block_reaches_nobody(
    kind: type[AttentionBackend], option: str, codes: torch.dtype | None
) -> None:
    broken, healthy, longer = sequences()
    backend = kind()
    backend.allocate((LayerSpec(2, 8, 8),), BLOCKS, BLOCK, torch.float32, CPU, codes=codes)

    def step(*chunks: Chunk, fill: float | None = None) -> torch.Tensor:
        context = build_batch(chunks, BLOCK, CPU).context
        torch.manual_seed(0)
        shape = context.slots.shape[0]
        q, k, v = (torch.randn(shape, heads, 8) for heads in (HEADS, 2, 2))
        if fill is not None:
            k, v = torch.full_like(k, fill), torch.full_like(v, fill)
        return backend.forward(0, q, k, v, context, scale=0.3, **OPTIONS[option])

    broken.block_table = list(range(BLOCKS))[: len(broken.block_table)]
    healthy.block_table, longer.block_table = broken.block_table[:2], list(range(10, 20))
    step(Chunk(broken, 0, 40, 40), fill=float("nan"))
    assert step(Chunk(healthy, 0, 5, 5), Chunk(longer, 0, 17, 17)).isfinite().all()
    assert step(Chunk(healthy, 5, 1, 6), Chunk(longer, 17, 1, 18)).isfinite().all()


def test_bfloat16_stays_within_its_rounding() -> None:
    torch.manual_seed(0)
    spec = LayerSpec(2, 16, 16)
    backends: list[AttentionBackend] = [ReferenceAttention(), TorchGpuAttention()]
    sequence = sequences()[0]
    context = build_batch([Chunk(sequence, 0, 20, 20)], BLOCK, CPU).context
    q, k, v = (torch.randn(20, h, 16).bfloat16() for h in (4, 2, 2))
    outputs = []
    for one in backends:
        one.allocate((spec,), BLOCKS, BLOCK, torch.bfloat16, CPU)
        outputs.append(one.forward(0, q, k, v, context, scale=0.25))
    assert outputs[1].dtype == torch.bfloat16
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.02, atol=0.02)


def test_backends_are_chosen_by_name() -> None:
    assert isinstance(make_backend("reference", CPU), ReferenceAttention)
    assert isinstance(make_backend("cuda", CPU), TorchGpuAttention)
    assert isinstance(make_backend("auto", torch.device("cuda")), TorchGpuAttention)
    with pytest.raises(ValueError, match="choose auto"):
        make_backend("flash", CPU)
    with pytest.raises(ValueError, match="on the CPU"):
        make_backend("cpu", torch.device("cuda"))
