"""A fused model gives the logits of the transformers model that it was made from."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.cpu.decoder import FusedStack
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.experts.gate import is_experts
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import SWITCH, native
from serve_app.engine.kernels.native import Native
from serve_app.engine.model.forward import ATTENTION_NAME, UnsupportedModel, active
from serve_app.engine.norm import Pending
from serve_app.engine.weights.int8_int4 import INT8
from serve_app.engine.weights.packed_linear import PackedLinear

SHAPE: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def glm4_moe() -> PreTrainedModel:
    """A plain layer first; then experts in groups, with corrections and a shared expert."""
    config = Glm4MoeConfig(
        **SHAPE,
        use_qk_norm=True,
        moe_intermediate_size=24,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        n_shared_experts=2,
        routed_scaling_factor=2.5,
    )
    model = Glm4MoeForCausalLM(config)
    for name, correction in model.named_buffers():
        if "correction" in name:
            correction.normal_(0, 0.1)
    return model


GEMMA3_LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama with biases and llama3 scaling": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3)
    ),
    "llama with yarn and tied embeddings": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters=YARN, tie_word_embeddings=True)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=9)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen2 with a window in the last layer": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=9, max_window_layers=2)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, sliding_window=9, attn_logit_softcapping=5.0, final_logit_softcapping=3.0)
    ),
    # Its third layer alone sees everything, with positions of its own.
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SHAPE, sliding_window=9, layer_types=["sliding_attention"] * 2 + ["full_attention"]
        )
    ),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SHAPE, pad_token_id=0, sliding_window=9)),
    "phi3 that turns three quarters of a head": lambda: Phi3ForCausalLM(
        Phi3Config(**SHAPE, pad_token_id=0, rope_parameters={**ROPE, "partial_rotary_factor": 0.75})
    ),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SHAPE)),
    "glm4": lambda: Glm4ForCausalLM(Glm4Config(**SHAPE, pad_token_id=0, attention_bias=True)),
    "granite": lambda: GraniteForCausalLM(
        GraniteConfig(
            **SHAPE,
            embedding_multiplier=2.0,
            residual_multiplier=0.4,
            attention_multiplier=0.3,
            logits_scaling=0.5,
        )
    ),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SHAPE, attention_bias=True, logit_scale=0.5)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=5)),
    "qwen2_moe with shared experts": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(**SHAPE, **EXPERTS, shared_expert_intermediate_size=40)
    ),
    "qwen3_moe with a plain layer": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SHAPE, **EXPERTS, mlp_only_layers=[1])
    ),
    "glm4_moe": glm4_moe,
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **SHAPE,
            num_local_experts=6,
            num_experts_per_tok=2,
            sliding_window=9,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters=YARN,
        )
    ),
}
TOKENS = 30


def has_experts(model: PreTrainedModel) -> bool:
    return any(map(is_experts, model.modules()))


@pytest.fixture
def _kernels() -> None:
    if native() is None:
        pytest.skip("no native kernels on this machine")


def build(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():  # biases and norms that do something
        parameter.data += torch.randn_like(parameter) * 0.1
    return model.to(dtype)


def cache(backend: AttentionBackend, dtype: torch.dtype) -> AttentionBackend:
    backend.allocate((LayerSpec(2, 16, 16),) * 3, 4, 16, dtype, torch.device("cpu"))
    return backend


def logits(
    model: PreTrainedModel, backend: AttentionBackend, ids: torch.Tensor, chunks: list[int]
) -> torch.Tensor:
    """[TOKENS, V] of one sequence in chunks of the given lengths."""
    parts, begin = [], 0
    for length in chunks:
        positions = torch.arange(begin, begin + length)
        begin += length
        context = ForwardContext(
            query_start=torch.tensor([0, length], dtype=torch.int32),
            context_lens=torch.tensor([begin], dtype=torch.int32),
            block_tables=torch.tensor([[2, 1]], dtype=torch.int32),
            slots=torch.tensor([2, 1])[positions // 16] * 16 + positions % 16,
            query_lens=(length,),
            lens=(begin,),
            block_size=16,
        )
        with torch.inference_mode(), active(backend, context):
            out = model(
                input_ids=ids[None, positions],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=torch.arange(length),
            )
        parts.append(out.logits[0].float())
    return torch.cat(parts)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("_kernels")
def test_a_fused_model_gives_the_logits_of_the_original(name: str, dtype: torch.dtype) -> None:
    original = build(name, dtype)
    fused = accelerate_cpu(copy.deepcopy(original), dtype)
    assert all(isinstance(layer, FusedStack) for layer in fused.get_decoder().layers)
    original.set_attn_implementation(ATTENTION_NAME)
    ids = torch.randint(0, 120, (TOKENS,), generator=torch.Generator().manual_seed(2))
    want = logits(original, cache(ReferenceAttention(), dtype), ids, [TOKENS])
    tolerance = 2e-4 if dtype == torch.float32 else 0.05 * float(want.abs().max())
    for backend in (CpuAttention(), ReferenceAttention()):
        got = logits(fused, cache(backend, dtype), ids, [12, 17, 1])
        far = ((got - want).abs().amax(1) <= tolerance).logical_not().float().mean()  # NaN is far
        # Between two experts with nearly the same score, the rounding of narrow numbers decides.
        assert far <= (0.1 if dtype == torch.bfloat16 and has_experts(original) else 0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("_kernels")
def test_logits_are_the_same_bit_for_bit_however_the_prompt_is_cut(name: str) -> None:
    model = accelerate_cpu(build(name), torch.float32)
    ids = torch.arange(TOKENS) * 7 % 120
    whole = logits(model, cache(CpuAttention(), torch.float32), ids, [TOKENS])
    for chunks in ([1] * TOKENS, [5, 16, 9], [29, 1]):
        assert torch.equal(logits(model, cache(CpuAttention(), torch.float32), ids, chunks), whole)


def test_without_kernels_the_model_stays_transformers_own_and_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    original = build("qwen3")
    packed = accelerate_cpu(copy.deepcopy(original), torch.float32)
    assert not any(isinstance(layer, FusedStack) for layer in packed.get_decoder().layers)
    for model in (original, packed):
        model.set_attn_implementation(ATTENTION_NAME)
    ids = torch.arange(TOKENS)
    want = logits(original, cache(ReferenceAttention(), torch.float32), ids, [TOKENS])
    got = logits(packed, cache(CpuAttention(), torch.float32), ids, [12, 18])
    torch.testing.assert_close(got, want, atol=2e-4, rtol=0)


def test_an_unknown_structure_is_packed_but_not_fused() -> None:
    torch.manual_seed(0)
    model = GemmaForCausalLM(GemmaConfig(**SHAPE)).eval()
    accelerate_cpu(model, torch.float32)
    assert not any(isinstance(layer, FusedStack) for layer in model.get_decoder().layers)


@pytest.mark.usefixtures("_kernels")
def test_a_fused_layer_with_other_results_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    right = FusedStack.run

    def wrong(self: FusedStack, *arguments: Any) -> tuple[torch.Tensor, Pending | None]:
        residual, pending = right(self, *arguments)
        return residual + 0.1, pending

    monkeypatch.setattr(FusedStack, "run", wrong)
    accelerate_cpu(model, torch.float32)
    assert not any(isinstance(layer, FusedStack) for layer in model.get_decoder().layers)
    assert any(isinstance(part, PackedLinear) for part in model.modules())


@pytest.mark.usefixtures("_kernels")
def test_packed_linears_with_other_results_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = Native.linear
    monkeypatch.setattr(Native, "linear", lambda *arguments, **more: right(*arguments, **more) * 1.01)
    torch.manual_seed(0)
    model = GemmaForCausalLM(GemmaConfig(**SHAPE)).eval()
    with pytest.raises(UnsupportedModel, match=r"GemmaForCausalLM in int8 computes something else .* off by"):
        accelerate_cpu(copy.deepcopy(model), torch.float32, weights=replace(INT8, error=0.0))
    accelerate_cpu(model, torch.float32)
    assert not any(isinstance(part, PackedLinear) for part in model.modules())
    assert "GemmaForCausalLM is not packed: its logits are off by" in caplog.text
