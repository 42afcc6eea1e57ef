"""Models of real shapes with random weights, made on the device itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    GptOssConfig,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from benchmarks.gpu.counted import Counted
from benchmarks.roofline import Shape
from serve_app.codes.matrix import QuantisedMatrix
from serve_app.codes.tensor import CodedTensor
from serve_app.engine.weights.gpu_codes import FP4_VALUES

LONGEST: Final = 131_072  # tokens of a context
END: Final = 0  # an end token that no benchmark stops at


COMMON: Final[dict[str, Any]] = {
    "max_position_embeddings": LONGEST,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
}
OF_QWEN3: Final[dict[str, Any]] = {
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}


def _llama(**sizes: Any) -> PretrainedConfig:
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    return LlamaConfig(rms_norm_eps=1e-5, rope_parameters=rope, **COMMON, **sizes)


def _qwen(**sizes: Any) -> PretrainedConfig:
    return Qwen3Config(head_dim=128, **OF_QWEN3, **COMMON, **sizes)


def _mixture(**sizes: Any) -> PretrainedConfig:
    return Qwen3MoeConfig(norm_topk_prob=True, **OF_QWEN3, **COMMON, **sizes)


def _hybrid(**sizes: Any) -> PretrainedConfig:
    """Three layers of gated delta rules, then one that attends, and so on."""
    return Qwen3_5TextConfig(**COMMON, **sizes)


def _latents(**sizes: Any) -> PretrainedConfig:
    return DeepseekV2Config(
        q_lora_rank=None,
        first_k_dense_replace=1,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        topk_method="greedy",
        norm_topk_prob=False,
        routed_scaling_factor=1.0,
        **COMMON,
        **sizes,
    )


def _gpt_oss(**sizes: Any) -> PretrainedConfig:
    """Half of the layers attend to a window, and all have experts with biases."""
    layers = sizes["num_hidden_layers"]
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return GptOssConfig(sliding_window=128, layer_types=kinds, **COMMON, **sizes)


TINY: Final = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def tiny() -> PretrainedConfig:
    """For trying the benchmark itself out, as the next three."""
    return _llama(**TINY)


def tiny_mixture() -> PretrainedConfig:
    return _mixture(**TINY, head_dim=16, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)


def tiny_hybrid() -> PretrainedConfig:
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    widths = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return _hybrid(**TINY | {"num_hidden_layers": 4}, head_dim=16, **sizes, **widths)


def tiny_latents() -> PretrainedConfig:
    widths = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
    return _latents(**TINY | {"num_key_value_heads": 4}, **widths, **experts)


def tiny_gpt_oss() -> PretrainedConfig:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    return _gpt_oss(**TINY, head_dim=16, **experts)


def qwen3_0_6b() -> PretrainedConfig:
    return _qwen(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )


def llama_3_1_8b() -> PretrainedConfig:
    return _llama(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    )


def llama_3_3_70b() -> PretrainedConfig:
    return _llama(
        vocab_size=128_256,
        hidden_size=8192,
        intermediate_size=28_672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
    )


def qwen3_32b() -> PretrainedConfig:
    return _qwen(
        vocab_size=151_936,
        hidden_size=5120,
        intermediate_size=25_600,
        num_hidden_layers=64,
        num_attention_heads=64,
        num_key_value_heads=8,
    )


def qwen3_30b_a3b() -> PretrainedConfig:
    return _mixture(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
    )


def qwen3_5_9b() -> PretrainedConfig:
    return _hybrid(
        vocab_size=248_320,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=32,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
    )


def deepseek_v2_lite() -> PretrainedConfig:
    return _latents(
        vocab_size=102_400,
        hidden_size=2048,
        intermediate_size=10_944,
        moe_intermediate_size=1408,
        n_routed_experts=64,
        num_experts_per_tok=6,
        num_hidden_layers=27,
        num_attention_heads=16,
        num_key_value_heads=16,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


OF_GPT_OSS: Final = {
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_experts_per_tok": 4,
}


def gpt_oss_20b() -> PretrainedConfig:
    return _gpt_oss(num_hidden_layers=24, num_local_experts=32, **OF_GPT_OSS)


def gpt_oss_120b() -> PretrainedConfig:
    return _gpt_oss(num_hidden_layers=36, num_local_experts=128, **OF_GPT_OSS)


SHAPES: Final[dict[str, Callable[[], PretrainedConfig]]] = {
    "tiny": tiny,
    "qwen3-0.6b": qwen3_0_6b,
    "llama-3.1-8b": llama_3_1_8b,
    "llama-3.3-70b": llama_3_3_70b,
    "qwen3-32b": qwen3_32b,
    "tiny-mixture": tiny_mixture,
    "tiny-hybrid": tiny_hybrid,
    "tiny-latents": tiny_latents,
    "qwen3-30b-a3b": qwen3_30b_a3b,
    "qwen3.5-9b": qwen3_5_9b,
    "deepseek-v2-lite": deepseek_v2_lite,
    "tiny-gpt-oss": tiny_gpt_oss,
    "gpt-oss-20b": gpt_oss_20b,
    "gpt-oss-120b": gpt_oss_120b,
}


def shape_of(name: str) -> Shape | Counted:
    """What the roofline counts of a model."""
    config = SHAPES[name]()
    dense = isinstance(config, LlamaConfig | Qwen3Config)
    return Shape.of_config(config.to_dict()) if dense else Counted.of(config)


def make_model(name: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Random weights, drawn on the device, so that the host needs no memory for them. The experts of gpt-oss
    are MXFP4, as in its checkpoints."""
    torch.manual_seed(0)
    with torch.device(device):
        made: PreTrainedModel = AutoModelForCausalLM.from_config(SHAPES[name](), dtype=dtype).eval()
    if "gpt-oss" in name:
        for part in made.modules():
            for parameter in ("gate_up_proj", "down_proj"):
                if (weight := part._parameters.get(parameter)) is not None and weight.dim() == 3:
                    setattr(part, parameter, nn.Parameter(_mxfp4(weight), requires_grad=False))
    return made


class _RandomMxfp4:
    """The codes of one expert as a `Source`, drawn anew for each use, but always the same."""

    def __init__(self, shape: tuple[int, int], seed: int, device: torch.device) -> None:
        self.shape, self._seed, self._device = shape, seed, device

    def codes(self) -> QuantisedMatrix:
        random = torch.Generator(self._device).manual_seed(self._seed)
        rows, columns = self.shape
        options: dict[str, Any] = {"generator": random, "device": self._device, "dtype": torch.uint8}
        scales = torch.full((rows, -(-columns // 32)), 2.0**-7, device=self._device)
        codes = torch.randint(16, (rows, columns), **options)
        return QuantisedMatrix(codes, scales, (1, 32), values=FP4_VALUES.to(self._device))

    def write_to(self, out: torch.Tensor) -> None:
        self.codes().write_to(out)


def _mxfp4(weight: torch.Tensor) -> CodedTensor:
    """Random experts in place of `weight` [E, K, N]."""
    count, columns, rows = weight.shape
    sources = [_RandomMxfp4((rows, columns), number, weight.device) for number in range(count)]
    return CodedTensor.of(sources, weight.dtype, weight.device, experts=True, transposed=True)
