"""Models of real shapes with random weights, made on the device itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from benchmarks.roofline import Shape

LONGEST: Final = 131_072  # tokens of a context
END: Final = 0  # an end token that no benchmark stops at


def _llama(**sizes: Any) -> PretrainedConfig:
    return LlamaConfig(
        max_position_embeddings=LONGEST,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        **sizes,
    )


def _qwen(**sizes: Any) -> PretrainedConfig:
    return Qwen3Config(
        head_dim=128,
        max_position_embeddings=LONGEST,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        **sizes,
    )


def tiny() -> PretrainedConfig:
    """For trying the benchmark itself out."""
    return _llama(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


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


def qwen3_32b() -> PretrainedConfig:
    return _qwen(
        vocab_size=151_936,
        hidden_size=5120,
        intermediate_size=25_600,
        num_hidden_layers=64,
        num_attention_heads=64,
        num_key_value_heads=8,
    )


SHAPES: Final[dict[str, Callable[[], PretrainedConfig]]] = {
    "tiny": tiny,
    "qwen3-0.6b": qwen3_0_6b,
    "llama-3.1-8b": llama_3_1_8b,
    "qwen3-32b": qwen3_32b,
}


def shape_of(name: str) -> Shape:
    """What the roofline counts of a model."""
    return Shape.of_config(SHAPES[name]().to_dict())


def make_model(name: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Random weights, drawn on the device, so that the host needs no memory for them."""
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(SHAPES[name](), dtype=dtype).eval()
