"""All layers in one native call give, bit for bit, what they give one by one."""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from serve_app.config import EngineConfig
from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cpu.decoder import FusedStack
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.kernels import native
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.kernels.structs import Part, Preempted, Product
from serve_app.engine.model.forward import active
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.engine.weights.formats import FORMATS
from serve_app.types import SamplingParams
from tests.unit.engine.cpu.test_fused import MODELS as FAMILIES
from tests.unit.engine.cpu.test_fused import SHAPE

MIXED = "qwen3_moe with a plain layer"
HYBRID = "qwen3_5_text"
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 48,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
LARGE = 40
HELD = 20  # threads that act as if they had lost their core, in a run of all steps
REPEATS, ENOUGH = 3000, 200  # runs of all steps; tasks that were taken over in them

pytestmark = pytest.mark.skipif(native() is None, reason="no native kernels on this machine")

MODELS = {
    "llama": lambda **o: LlamaForCausalLM(LlamaConfig(**SHAPE | o)),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=9)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda **o: Qwen3ForCausalLM(Qwen3Config(**SHAPE | o)),
    # Norms after attention and MLP, two kinds of positions; norms over all heads; half of a head turned by
    # neighbours; a factor of what layers add; MLPs beside attention, and norms that take the mean away.
    **{name: FAMILIES[name] for name in ("gemma3", "olmo2", "glm4", "granite", "cohere")},
    # Experts, whose weights sum to one or not, and a layer without; groups, and a shared expert.
    **{name: FAMILIES[name] for name in ("mixtral", MIXED, "glm4_moe")},
    # Attention with gates, and a delta rule in its place.
    HYBRID: lambda: AutoModelForCausalLM.from_config(AutoConfig.for_model(HYBRID, **SHAPE | DELTA)),
}
# Steps of (sequence, first position, tokens): prompts whole and in chunks, beside decodes, in batches
# that grow, reach over tiles of rows that two threads compute on their own, and shrink.
STEPS: tuple[tuple[tuple[int, int, int], ...], ...] = (
    ((0, 0, 7),),
    ((0, 7, 1), (1, 0, 33)),
    ((0, 8, 1), (1, 33, 1), (2, 0, 150), (3, 0, 1)),
    ((0, 9, 1), (1, 34, 1), (2, 150, 9), (3, 1, 1), (4, 0, 20)),
    ((1, 35, 1), (4, 20, 1), (5, 0, 190), (6, 0, 190), (7, 0, 190)),
    ((1, 36, 1), (4, 21, 1)),
    ((2, 159, 1),),
)


def build(
    name: str,
    dtype: torch.dtype,
    quantization: Quantization | None = None,
    large: float = 1.0,
    **options: Any,
) -> PreTrainedModel:
    """`large`: how many times larger than the others a few inputs of linears are, as in real models."""
    torch.manual_seed(0)
    model = MODELS[name](**options).eval()
    for parameter in model.parameters():  # biases and norms that do something
        parameter.data += torch.randn_like(parameter) * 0.1
    for layer in model.model.layers if large != 1 else ():
        layer.input_layernorm.weight.data[3] *= large
        layer.post_attention_layernorm.weight.data[5] *= large
        layer.mlp.up_proj.weight.data[7] *= large
    return accelerate_cpu(model.to(dtype), dtype, weights=FORMATS[quantization or "none"])


def runner(
    model: PreTrainedModel, backend: AttentionBackend, dtype: torch.dtype, kept: str = "auto"
) -> ModelRunner:
    config = EngineConfig(kv_cache_bytes=16 << 20, block_size=16, kv_cache_dtype=kept)  # type: ignore[arg-type]
    return ModelRunner(model, backend=backend, dtype=dtype, device=torch.device("cpu"), config=config)


def sequence(index: int) -> Sequence:
    random = torch.Generator().manual_seed(index)
    return Sequence(
        request_id=str(index),
        index=0,
        prompt_len=200,
        token_ids=torch.randint(0, 120, (200,), generator=random).tolist(),
        sampling=SamplingParams(),
        seed=0,
        block_table=list(range(index * 13, (index + 1) * 13))[::-1],
    )


def logits(runner: ModelRunner, steps: Seq[Seq[tuple[int, int, int]]] = STEPS) -> list[torch.Tensor]:
    """Of every token of every step."""
    outputs = []
    for step in steps:
        chunks = [Chunk(sequence(i), start, length, start) for i, start, length in step]
        outputs.append(runner.run(build_batch(chunks, runner.block_size, runner.device)))
    return outputs


def parts_of(name: str) -> set[Part]:
    """The parts of a step that a model has."""
    without = {"mixtral": {Part.GATE_UP_PRODUCT, Part.DOWN_PRODUCT}, MIXED: set(), "glm4_moe": set()}
    return set(Part) - without.get(name, {Part.EXPERTS})


@pytest.fixture
def native_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every step that was one native call."""
    rows: list[int] = []
    right = Native.run_layers

    def counted(self: Native, layers: Any, states: torch.Tensor, *others: Any, **more: Any) -> None:
        rows.append(len(states))
        right(self, layers, states, *others, **more)

    monkeypatch.setattr(Native, "run_layers", counted)
    return rows


@pytest.fixture(params=list(Product), ids=lambda product: product.name.lower())
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.dtype:
    """The type of weights that are multiplied that way, the only one left to the kernels."""
    kernels = native()
    assert kernels is not None
    for dtype, products in kernels.products.items():
        if request.param in products:
            monkeypatch.setattr(kernels, "products", kernels.products | {dtype: (request.param,)})
            return dtype
    pytest.skip("not on this processor")


@pytest.mark.parametrize("kept", ["auto", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_one_call_equals_layer_by_layer_and_the_reference(
    name: str, kept: str, dtype: torch.dtype, native_calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(name, dtype)
    one_call = runner(model, CpuAttention(), dtype, kept)
    native_calls.clear()
    got = logits(one_call)
    assert native_calls == [sum(length for _, _, length in step) for step in STEPS]
    reference = logits(runner(model, ReferenceAttention(), dtype, kept))
    with monkeypatch.context() as patch:
        patch.setattr(FusedStack, "_bind", lambda *_: None)
        by_layer = logits(runner(model, CpuAttention(), dtype, kept))
    assert len(native_calls) == len(STEPS)
    for one, many, want in zip(got, by_layer, reference, strict=True):
        assert torch.equal(one, many)
        # A code differs where the last bit of a number does.
        exact = dtype == torch.float32 and kept == "auto"
        if name == "glm4_moe" and not exact:
            continue  # where a number is rounded otherwise, a row may choose another group of experts
        tolerance = 2e-4 if exact else 0.03 * float(want.abs().max())
        torch.testing.assert_close(one, want, atol=tolerance, rtol=0)


@pytest.mark.parametrize("kept", ["auto", "int8"])
@pytest.mark.parametrize(("head_dim", "heads"), [(16, 6), (32, 7), (64, 4), (128, 2)])
def test_a_row_is_the_same_bit_for_bit_in_any_step_and_number_of_threads(
    dtype: torch.dtype, head_dim: int, heads: int, kept: str
) -> None:
    shape = {"head_dim": head_dim, "num_attention_heads": heads, "num_key_value_heads": 1 + (heads == 6)}
    model = build("qwen3", dtype, **shape)
    whole = logits(runner(model, CpuAttention(), dtype, kept), [[(2, 0, 160)]])[0]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)  # have tiles of their own in the largest step; one thread has not
        steps = logits(runner(model, CpuAttention(), dtype, kept))
        torch.set_num_threads(1)
        alone = logits(runner(model, CpuAttention(), dtype, kept))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(steps, alone, strict=True))
    assert torch.equal(torch.cat([steps[2][2:152], steps[3][2:11], steps[-1]]), whole)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("name", "kept"), [("qwen3", "auto"), ("qwen3", "int8"), (HYBRID, "auto")])
def test_the_last_layer_gives_the_rows_that_are_wanted_as_among_all(
    dtype: torch.dtype, name: str, kept: str, threads: int, native_calls: list[int]
) -> None:
    """The last rows of each sequence, some or none; the cache has all of them."""
    model, before = build(name, dtype), torch.get_num_threads()
    all_rows, some_rows = (runner(model, CpuAttention(), dtype, kept) for _ in range(2))
    wanted = (1, 0, 3, 1, 2)
    native_calls.clear()
    try:
        torch.set_num_threads(threads)
        for number, (step, want) in enumerate(zip(STEPS, logits(all_rows), strict=True)):
            # Of the second step no row is wanted, of the others some.
            counts = [
                min(length, wanted[(number + place) % len(wanted)]) * (number != 1)
                for place, (_, _, length) in enumerate(step)
            ]
            chunks = [
                Chunk(sequence(i), start, length, start + length - count)
                for (i, start, length), count in zip(step, counts, strict=True)
            ]
            got = some_rows.run(build_batch(chunks, some_rows.block_size, some_rows.device))
            parts = torch.split(want, [length for _, _, length in step])
            expected = [part[len(part) - count :] for part, count in zip(parts, counts, strict=True)]
            assert torch.equal(got, torch.cat(expected))
    finally:
        torch.set_num_threads(before)
    assert len(native_calls) == 2 * len(STEPS)
    backends = [getattr(each.backend, "backend", each.backend) for each in (all_rows, some_rows)]
    caches = (each.native_caches for each in backends)
    for one, other in zip(*caches, strict=True):
        assert all(torch.equal(*pieces) for pieces in zip(one.pieces, other.pieces, strict=True))


@pytest.mark.parametrize("name", ["llama", MIXED])
def test_a_profile_is_told_what_each_part_takes_and_changes_nothing(name: str, dtype: torch.dtype) -> None:
    model, loaded = build(name, dtype), native()
    assert loaded is not None
    expected = logits(runner(model, CpuAttention(), dtype))
    profiled = runner(model, CpuAttention(), dtype)
    with loaded.timed_parts() as seconds:
        got = logits(profiled)
    told = list(seconds)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    assert len(told) == len(Part)
    assert {part for part in Part if told[part]} == parts_of(name)
    logits(profiled)
    assert list(seconds) == told  # nobody asks any more


@pytest.mark.parametrize(("kind", "error"), [(Quantization.INT8, 0.1), (Quantization.INT4, 0.4)])
@pytest.mark.parametrize("name", MODELS)
def test_quantised_layers_in_one_call_equal_layer_by_layer_and_a_profile_is_told(
    kind: Quantization, error: float, name: str, native_calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, loaded = build(name, torch.float32, kind), native()
    assert loaded is not None
    native_calls.clear()
    with loaded.timed_parts() as seconds:
        got = logits(runner(model, CpuAttention(), torch.float32))
    assert len(native_calls) == len(STEPS)
    assert {part for part in Part if seconds[part]} == parts_of(name)
    monkeypatch.setattr(FusedStack, "_bind", lambda *_: None)
    by_layer = logits(runner(model, CpuAttention(), torch.float32))
    assert len(native_calls) == len(STEPS)
    plain = logits(runner(build(name, torch.float32), CpuAttention(), torch.float32))
    for one, many, want in zip(got, by_layer, plain, strict=True):
        assert torch.equal(one, many)
        assert (one - want).norm() < error * want.norm()


@pytest.mark.parametrize("kept", ["auto", "int8"])
@pytest.mark.parametrize("kind", Quantization)
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_quantised_heads_of_many_rows_equal_those_of_layer_by_layer(
    kind: Quantization, dim: int, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cache of bfloat16 or codes, a product of many rows finishes them itself; layer by layer, it
    does not."""
    model = build("qwen3", torch.bfloat16, kind, LARGE, head_dim=dim)
    got = logits(runner(model, CpuAttention(), torch.bfloat16, kept))
    monkeypatch.setattr(FusedStack, "_bind", lambda *_: None)
    by_layer = logits(runner(model, CpuAttention(), torch.bfloat16, kept))
    assert all(torch.equal(one, other) for one, other in zip(got, by_layer, strict=True))


@pytest.mark.parametrize(
    ("name", "kind"), [("llama", None), *(("llama", kind) for kind in Quantization), ("mixtral", None)]
)
@pytest.mark.parametrize("whom", [Preempted.OWNER, Preempted.STAND_IN])
def test_a_thread_that_loses_its_core_is_replaced_and_changes_nothing(
    whom: Preempted, name: str, kind: Quantization | None, dtype: torch.dtype
) -> None:
    """Of the two threads of a task one is late; the other one writes, and the late one's outputs are lost. It
    may read rows of the next product, of another length."""
    model, loaded = build(name, dtype, kind, LARGE if name == "llama" else 1), native()
    assert loaded is not None
    expected = logits(runner(model, CpuAttention(), dtype))
    threads, before = torch.get_num_threads(), loaded.tasks_taken_over()
    try:
        torch.set_num_threads(3)
        loaded.simulate_preemption(whom)
        got = logits(runner(model, CpuAttention(), dtype))
    finally:
        held = loaded.simulate_preemption(Preempted.NOBODY)
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    assert held >= HELD
    if whom is Preempted.OWNER:
        assert loaded.tasks_taken_over() - before >= held


@pytest.mark.full
def test_threads_that_the_system_preempts_are_replaced_and_change_nothing(dtype: torch.dtype) -> None:
    """Three threads a core: at any time most are in the middle of a task and have no core."""
    model, loaded = build("llama", dtype, hidden_size=288, intermediate_size=1024), native()
    assert loaded is not None
    expected = logits(runner(model, CpuAttention(), dtype))
    threads, before = torch.get_num_threads(), loaded.tasks_taken_over()
    try:
        torch.set_num_threads(min(64, 3 * (os.cpu_count() or 1)))
        for _ in range(REPEATS):
            got = logits(runner(model, CpuAttention(), dtype))
            assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
            if loaded.tasks_taken_over() - before >= ENOUGH:
                return
    finally:
        torch.set_num_threads(threads)
    pytest.fail(f"{loaded.tasks_taken_over() - before} tasks were taken over, not {ENOUGH}")


def test_two_threads_may_run_steps_of_one_model_at_the_same_time() -> None:
    model = build("llama", torch.bfloat16)
    runners = [runner(model, CpuAttention(), torch.bfloat16) for _ in range(2)]
    want = logits(runners[0])
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda index: logits(runners[index % 2]), range(2)))
    for got in results:
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_gates_that_do_not_fill_their_last_vector_go_layer_by_layer(native_calls: list[int]) -> None:
    model = build("llama", torch.float32, intermediate_size=72)
    got = logits(runner(model, CpuAttention(), torch.float32))
    want = logits(runner(model, ReferenceAttention(), torch.float32))
    assert not native_calls
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=0)


def test_a_cache_of_another_shape_is_refused_before_the_native_call() -> None:
    model = build("llama", torch.float32)
    backend, cpu = CpuAttention(), torch.device("cpu")
    layers = LayerSpec(2, 16, 16), LayerSpec(2, 16, 16), LayerSpec(2, 32, 32)
    backend.allocate(layers, 13, 16, torch.float32, cpu)
    batch = build_batch([Chunk(sequence(0), 0, 4, 3)], 16, cpu)
    inputs = {"input_ids": batch.input_ids[None], "position_ids": batch.positions[None]}
    with torch.inference_mode(), active(backend, batch.context), pytest.raises(ValueError, match="not fit"):
        model(**inputs, use_cache=False)
