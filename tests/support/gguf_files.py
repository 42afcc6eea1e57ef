"""Small models as GGUF files, written by the gguf package: its names of tensors, its quantisers, its writer.

What else llama.cpp's converter does to a checkpoint is done here after its own source: the order of rows of
queries and keys, norms with one added, stacked experts, settings under an architecture's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from serve_app.models.catalogue import demo_folder
from tests.support.gguf_converter import written
from tests.support.tiny_models import make_model, tiny_config

Type = gguf.GGMLQuantizationType
Kinds: TypeAlias = Callable[[str], Type]  # the type for the name of a tensor in the file

_MOE: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_DELTA: Final = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
# Settings of small models whose columns blocks of 32 divide.
SIZES: Final[dict[str, dict[str, Any]]] = {
    "llama": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 64, "norm_topk_prob": False},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**_MOE, "head_dim": 16, "norm_topk_prob": True},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 6},
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 6, "num_hidden_layers": 7},
    "phi3": {},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "gpt_oss": {
        "head_dim": 16,
        "sliding_window": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_MOE, **_DELTA, "shared_expert_intermediate_size": 64},
}
_SHARED: Final = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
}
ARCHITECTURES: Final = {
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
_EXPERT: Final = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_BYTES: Final = [
    chr(each) for each in (*range(33, 127), 0x120, 0x10A)
]  # of the alphabet of byte-level tokens


def make_gguf(
    path: Path,
    architecture: str,
    kinds: Kinds,
    settings: Mapping[str, Any] | None = None,
    more: Mapping[str, tuple[Any, Type]] | None = None,
    **overrides: Any,
) -> PreTrainedModel:
    """Write a small model to `path`; returns the model with the numbers that the file means, in float32.

    `settings` and `more` tensors: of the file, besides those that its model has; a setting of None takes one
    out. `overrides`: of the model's configuration.
    """
    config = tiny_config(architecture, **{**_SHARED, **SIZES[architecture], **overrides})
    plain = path.parent / f"{path.stem}-plain"
    make_model(config).save_pretrained(plain)
    name = ARCHITECTURES.get(architecture, architecture)
    described = json.loads((plain / "config.json").read_text())
    tensors, meant = packed(load_file(plain / "model.safetensors"), name, described, kinds)
    save_file(meant, plain / "model.safetensors", {"format": "pt"})
    described_by = {**settings_of(name, described), **vocabulary(), **(settings or {})}
    write(path, name, described_by, {**tensors, **(more or {})})
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32)
    return model.eval()


def write(
    path: Path, architecture: str, settings: Mapping[str, Any], tensors: Mapping[str, tuple[Any, Type]]
) -> None:
    """Write a file. Settings without a dot in their name are of the architecture."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in settings.items():
        key = (
            name
            if "." in name and name.split(".")[0] in ("tokenizer", "general")
            else f"{architecture}.{name}"
        )
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_string(key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed(
    checkpoint: Mapping[str, torch.Tensor], architecture: str, config: Mapping[str, Any], kinds: Kinds
) -> tuple[dict[str, tuple[Any, Type]], dict[str, torch.Tensor]]:
    """The tensors of a file, and a checkpoint with the numbers that they mean."""
    by_name = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_name[architecture], config["num_hidden_layers"])
    tensors: dict[str, tuple[Any, Type]] = {}
    meant: dict[str, torch.Tensor] = {}
    stacks: dict[str, dict[int, str]] = {}

    def write(name: str, weight: torch.Tensor) -> torch.Tensor:
        made = written(name, weight, architecture, config)
        numbers = []
        for own, each in made.tensors.items():
            target = names.get_name(own, try_suffixes=(".weight", ".bias"))
            assert target is not None, own
            tensors[target], found = _packed(target, each, architecture, kinds)
            numbers.append(found)
        return made.back(numbers)

    for name, weight in checkpoint.items():
        if expert := _EXPERT.fullmatch(name):
            stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", {})[int(expert[2])] = name
        else:
            meant[name] = write(name, weight)
    for name, numbered in stacks.items():
        whole = write(name, torch.stack([checkpoint[numbered[number]] for number in range(len(numbered))]))
        meant |= {numbered[number]: whole[number].clone() for number in range(len(numbered))}
    return tensors, meant


def _packed(
    target: str, weight: torch.Tensor, architecture: str, kinds: Kinds
) -> tuple[tuple[Any, Type], torch.Tensor]:
    """As a file has it, and what that means."""
    plus_one = (
        architecture.startswith(("gemma", "qwen35")) and target.endswith("norm.weight")
    ) and "ssm" not in target
    # The converter drops dimensions of one.
    data = weight.float() + 1 if plus_one else weight.float().squeeze()
    plain = data.dim() < 2 or target.endswith("bias") or re.search(r"norm|conv1d|conv\.weight", target)
    kind = Type.F32 if plain else kinds(target)
    blocks = encoded(data.contiguous().numpy(), kind)
    numbers = torch.from_numpy(dequantize(blocks, kind).copy()).view(weight.shape)
    return (blocks, kind), numbers - 1 if plus_one else numbers


def encoded(data: np.ndarray[Any, Any], kind: Type) -> Any:
    """By the package's own quantiser; for types without one, blocks of random codes and moderate scales."""
    try:
        return quantize(data, kind)
    except NotImplementedError:
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (*data.shape[:-1], data.shape[-1] // numbers, size)
        return random_blocks(kind, shape).reshape(*data.shape[:-1], -1)


_SCALES: Final = {  # where a block's own scales lie
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
    Type.IQ4_XS: (0,),
}


def random_blocks(kind: Type, shape: tuple[int, ...]) -> Any:
    """Blocks [..., bytes] of a type: all bytes are random but those of float16 scales, which are small."""
    draw = np.random.default_rng(int(kind))
    blocks = draw.integers(0, 256, shape, dtype=np.uint8)
    for place in _SCALES[kind]:
        scales = draw.normal(0, 2e-4, (*shape[:-1], 1)).astype("<f2")
        blocks[..., place : place + 2] = scales.view(np.uint8)
    return blocks


def settings_of(architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a file, as llama.cpp's converter writes them."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads = config["num_key_value_heads"]
    rope = config["rope_parameters"]
    found: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": hidden,
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config.get("norm_eps"),
        "rope.freq_base": float((rope.get("full_attention") or rope)["rope_theta"]),
        "vocab_size": config["vocab_size"],
    }
    if rope.get("rope_type") == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
        found |= {f"rope.scaling.yarn_{key}": rope[key] for key in ("beta_fast", "beta_slow") if key in rope}
    size = config.get("head_dim") or hidden // heads
    if architecture in ("qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "gpt-oss", "qwen35", "qwen35moe"):
        found |= {"attention.key_length": size, "attention.value_length": size}
    else:
        found["rope.dimension_count"] = size
    if experts := config.get("num_experts") or config.get("num_local_experts"):
        found |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    for key, setting in (
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ("sliding_window", "attention.sliding_window"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("conv_L_cache", "shortconv.l_cache"),
    ):
        if config.get(key):
            found[setting] = config[key]
    if architecture == "gpt-oss":
        found["expert_feed_forward_length"] = config["intermediate_size"]
    if architecture.startswith("qwen35"):
        values = config["linear_num_value_heads"]
        found |= {
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": values,
            "ssm.inner_size": values * config["linear_value_head_dim"],
            "attention.recurrent_layers": [each == "linear_attention" for each in config["layer_types"]],
            "full_attention_interval": 4,
            "rope.dimension_count": int(size * rope["partial_rotary_factor"]),
            "rope.dimension_sections": [*rope["mrope_section"], 0],
        }
    if architecture == "lfm2":
        found["attention.head_count_kv"] = [
            kv_heads if each == "full_attention" else 0 for each in config["layer_types"]
        ]
    return found


def vocabulary(size: int = 128) -> dict[str, Any]:
    """A byte-level tokenizer of `size` tokens with a few merges, as settings of a file."""
    special = ["<unk>", "<|im_start|>", "<|im_end|>"]
    merges = ["t h", "th e", "Ġ the", "i n", "1 2"]
    tokens = [*special, *_BYTES, *(each.replace(" ", "") for each in merges), "<think>"]
    types = [3] * len(special) + [1] * (len(tokens) - len(special) - 1) + [4]
    padding = [f"[PAD{number}]" for number in range(len(tokens), size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens + padding,
        "tokenizer.ggml.token_type": types + [5] * len(padding),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}",
    }


def demo_gguf(path: Path) -> Path:
    """demo-chat with its own tokenizer and template, its matrices in Q8_0."""
    folder = demo_folder("demo-chat")
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = {
        **tokenizer["model"]["vocab"],
        **{each["content"]: each["id"] for each in tokenizer["added_tokens"]},
    }
    special = {each["id"]: 3 if each["special"] else 4 for each in tokenizer["added_tokens"]}
    tensors, _ = packed(load_file(folder / "model.safetensors"), "llama", config, lambda name: Type.Q8_0)
    settings = {
        **settings_of("llama", config),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": sorted(tokens, key=tokens.__getitem__),
        "tokenizer.ggml.token_type": [special.get(number, 1) for number in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(each) for each in tokenizer["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.ggml.padding_token_id": config["pad_token_id"],
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(),
    }
    write(path, "llama", settings, tensors)
    return path
