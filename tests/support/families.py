"""Every family of transformers' causal language models, small, and what the product makes of it.

A family is judged by the product's own path: a saved checkpoint, the loader, the packed
linears, the paged cache. `python -m tests.support.models_tables` writes the tables of docs/models.md.
"""

from __future__ import annotations

import copy
import multiprocessing
import resource
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)
from transformers.utils import logging

from serve_app.config import ModelConfig
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.experts.packed import has_experts
from serve_app.engine.fused.fuse import known
from serve_app.engine.kernels.structs import TYPES
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.indexers import has_indexers
from serve_app.engine.model.stateful import stateful_functions
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.int8_int4 import INT4, INT8
from serve_app.engine.weights.packable import COUNTS
from serve_app.models.errors import ModelLoadError
from serve_app.models.guards import auto_class, check_config
from serve_app.models.loader import load_model
from tests.support.multimodal import DOTS3, small_settings, whole_class
from tests.support.tiny_models import ARCHITECTURES, BASE, MLA, WINDOW, check_parity, enlarge

MAX_CPU_S: Final = 60  # of one family's process
MAX_MEMORY: Final = 8 * 2**30  # bytes of its address space
MAX_PARAMETERS: Final = 110_000_000  # more than that is not small: a size is missing below

# Sizes for whichever of these settings a family has.
SMALL: Final[dict[str, Any]] = {
    "d_model": 32,
    "embedding_size": 32,
    "expert_ffn_hidden_size": 16,
    "ffn_dim": 48,
    "ffn_hidden_size": 48,
    "first_k_dense_replace": 1,
    "head_dim": 8,
    "index_head_dim": 16,
    "index_n_heads": 16,
    "index_topk": 4,
    "intermediate_size_mlp": 48,
    "kv_lora_rank": 16,
    "moe_intermediate_size": 16,
    "moe_k": 2,
    "moe_num_experts": 4,
    "moe_shared_expert_intermediate_size": 16,
    "moe_topk": 2,
    "n_embd": 32,
    "n_group": 1,
    "n_head": 4,
    "n_layer": 4,
    "n_positions": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "num_shared_experts": 1,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "query_pre_attn_scalar": 8,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "topk_group": 1,
    "type_vocab_size": 2,
    "v_head_dim": 16,
    "word_embed_proj_dim": 32,
}
PART: Final = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION: Final = {**PART, "image_size": 28, "patch_size": 14}
PLAIN_ROPE: Final = {"rope_type": "default", "rope_theta": 1e4}
MROPE: Final = {**PLAIN_ROPE, "mrope_section": [2, 1, 1]}
HEADS: Final = {**BASE, "num_key_value_heads": 4, "hidden_size_global": 32}  # of a byte latent transformer
PER_LAYER: Final = {"vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 8}
MAMBA: Final = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_state": 16}
DELTA: Final = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
CONV: Final = {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}

OVERRIDES: Final[dict[str, dict[str, Any]]] = {
    **ARCHITECTURES,
    "axk1": MLA,
    "axk2": MLA,
    "bailing_hybrid": {**MLA, "num_local_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    | {"head_dim": 16, "layer_group_size": 2},
    "bamba": {**MAMBA, "attn_layer_indices": [1, 3]},
    "blt": {
        "patcher_config": HEADS,
        "encoder_config": HEADS,
        "decoder_config": HEADS,
        "global_config": HEADS,
        "encoder_hash_byte_group_vocab": 100,
        "encoder_hash_byte_group_size": [3],
    },
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {**PLAIN_ROPE, "mrope_section": [2, 1, 1]}}
    },
    "dbrx": {
        "rope_parameters": PLAIN_ROPE,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48},
    },
    "deepseek_v2": MLA,
    "deepseek_v32": MLA,
    "dots3_note_text": DOTS3,
    "emu3": {
        "text_config": BASE,
        "vq_config": {
            "base_channels": 32,
            "num_res_blocks": 1,
            "channel_multiplier": [1, 1],
            "hidden_size": 32,
        },
    },
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "fuyu": {"text_config": BASE},
    "gemma3": {"text_config": {**BASE, **ARCHITECTURES["gemma3_text"]}, "vision_config": VISION},
    "gemma3n": {"text_config": {**BASE, **PER_LAYER, "head_dim": 8}},
    "gemma3n_text": {
        **PER_LAYER,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 6,
        "laurel_rank": 4,
        **WINDOW,
    },
    "gemma4": {
        "text_config": {**BASE, **WINDOW, **PER_LAYER, "head_dim": 8, "global_head_dim": 8},
        "vision_config": {**VISION, "head_dim": 8, "num_key_value_heads": 2},
        "audio_config": None,
    },
    "gemma4_unified": {"text_config": {**BASE, **WINDOW, "head_dim": 8, "global_head_dim": 8}},
    "gemma4_unified_text": {**WINDOW, "head_dim": 8, "global_head_dim": 8},
    "gemma4_text": {**ARCHITECTURES["gemma4_text"], **PER_LAYER},
    "git": {"vision_config": VISION},
    "glm4_moe_lite": MLA,
    "glm_moe_dsa": {**MLA, "indexer_types": ["full", "shared", "full", "shared"]},
    "got_ocr2": {
        "text_config": BASE,
        "vision_config": {**VISION, "num_channels": 3, "output_channels": 16, "mlp_dim": 16},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["linear_attention", "full_attention"] * 2},
    "hy_v4": {**MLA, "indexer_types": ["full", "shared", "full", "shared"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 16},
    "kimi_linear": {
        **MLA,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "q_lora_rank": None,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "lfm2": CONV,
    "lfm2_moe": {**CONV, "num_dense_layers": 1},
    "llama4_text": {"attention_chunk_size": 16, "floor_scale": 4, "attn_scale": 0.5},
    "longcat_flash": {**MLA, "num_layers": 2, "zero_expert_num": 2},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 16},
    "mllama": {
        "text_config": {**BASE, "cross_attention_layers": [1]},
        "vision_config": {
            **VISION,
            "attention_heads": 2,
            "num_global_layers": 1,
            "vision_output_dim": 32,
            "intermediate_layers_indices": [0],
        },
    },
    "moshi": {"sliding_window": 64},  # its own is as long as its context
    "moss_transcribe_diarize": {"text_config": BASE, "audio_config": PART},
    "nemotron_h": {
        "layer_types": ["linear_attention", "full_attention", "moe", "mlp"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
    },
    "olmo_hybrid": DELTA,
    "phi4_multimodal": {
        "vision_config": VISION,
        "audio_config": {
            **PART,
            "num_blocks": 1,
            "ext_pw_out_channel": 16,
            "depthwise_separable_out_channel": 16,
            "nemo_conv_channels": 16,
        },
    },
    "qwen3_5_moe_text": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA,
    "roc_bert": {
        "pronunciation_vocab_size": 96,
        "shape_vocab_size": 96,
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
    },
    "xmod": {"default_language": "en_XX"},
    "youtu": MLA,
    "zamba": {"attn_layer_period": 3, "attn_layer_offset": 2, "mamba_d_state": 16, "num_hidden_layers": 6},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_mem_blocks": 1,
        "mamba_d_state": 16,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
    },
    "zaya": {"num_experts_per_tok": 1},
}
# Families whose own sizes serve: they are refused before anything is built of them.
AS_THEY_ARE: Final = frozenset(
    {
        "dots3_note",
        "gemma4_assistant",
        "glm5_next",
        "prophetnet",
        "qwen2_5_omni",
        "qwen3_omni_moe",
        "xlnet",
    }
)
# Families whose checkpoints only classify; transformers lists the class that they are built on.
CLASSIFIERS: Final = frozenset({"shieldgemma2"})
# What a checkpoint of a family may say beyond its defaults, where transformers computes something else then.
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "decoder": {"is_decoder": True},
    "window": {"sliding_window": 6},
    "windows of some layers": {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 6},
}


# What a state is, by the function that computes it.
STATES: Final = {
    "causal_conv1d_fn": "convolution",
    "chunk_kimi_delta_attention": "Kimi delta attention",
    "mamba2_chunk_scan": "Mamba 2",
    "mamba_selective_scan": "Mamba",
    "torch_chunk_gated_delta_rule": "gated delta rule",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a family: served as transformers computes it, refused with a reason, or neither."""

    family: str
    outcome: str  # served, refused or failed
    reason: str = ""
    path: tuple[str, ...] = ()  # of a family that is served: the cells of its row


def families() -> list[str]:
    """Those that the installed transformers makes, with variants: `model_type` or `model_type (variant)`."""
    made = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name in AS_THEY_ARE or _defaults(name)]
    return sorted((*(f"{name}{variant}" for name in made for variant in _variants(name)), *_wholes()))


def _wholes() -> Iterator[str]:
    """Families that read images or sound too, and are not causal language models to transformers."""
    for name in sorted(MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.keys() - CLASSIFIERS):
        causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(name)
        if causal is None:
            yield name
        elif causal != whole_class(name):
            yield f"{name} (whole)"


def _variants(model_type: str) -> Iterator[str]:
    yield ""
    if model_type in AS_THEY_ARE:
        return
    defaults = _defaults(model_type)
    if defaults.get("is_decoder") is False and not defaults.get("is_encoder_decoder"):
        yield " (decoder)"
    if defaults.get("use_sliding_window") is False and "max_window_layers" in defaults:
        yield " (windows of some layers)"
    elif "sliding_window" in defaults and defaults["sliding_window"] is None:
        yield " (window)"


@cache
def _defaults(model_type: str) -> dict[str, Any]:
    """A family's configuration as transformers makes it without any setting; empty where it needs some."""
    try:
        return AutoConfig.for_model(model_type).to_dict()
    except StrictDataclassError:  # before 5.23 that of musicgen, which needs those of its parts
        return {}


def class_name(family: str) -> str:
    """The class of transformers that a checkpoint of the family names."""
    model_type, _, variant = family.partition(" ")
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if found is None or variant == "(whole)":
        return whole_class(model_type) or ""
    return found if isinstance(found, str) else found[0]


def small_config(family: str) -> PreTrainedConfig:
    """A configuration with every feature of the family and a few thousand numbers."""
    model_type, _, variant = family.removesuffix(")").partition(" (")
    settings: dict[str, Any] = {}
    if model_type in AS_THEY_ARE - {"gemma4_assistant"} and variant != "whole":
        settings = {}
    elif model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or variant == "whole":
        settings = small_settings(model_type, {**BASE, **SMALL})
    elif model_type not in AS_THEY_ARE:
        defaults = _defaults(model_type)
        window = WINDOW if isinstance(defaults.get("sliding_window"), int) else {}
        own = {key: value for key, value in {**SMALL, **window}.items() if key in defaults}
        settings = {**BASE, **own, **OVERRIDES.get(model_type, {}), **VARIANTS.get(variant, {})}
    elif model_type == "gemma4_assistant":
        text = {**dict.fromkeys(PER_LAYER, 0), "num_kv_shared_layers": 30}
        settings = {"text_config": text}
    config = AutoConfig.for_model(model_type, **settings)
    config.architectures = [class_name(family)]
    return config


def judge(family: str) -> Verdict:
    """In this process: load a small checkpoint as the product does, and compare it with transformers."""
    config = small_config(family)
    try:
        check_config(config)
        with tempfile.TemporaryDirectory() as folder:
            save_small(config, Path(folder))
            loaded = load_model(
                ModelConfig(name="small", source=folder, device="cpu", dtype="float32"), lambda _: None
            )
            reference: PreTrainedModel = (
                auto_class(config)
                .from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
                .eval()
            )
        path = _path(loaded.module)
        check_parity(
            reference, CpuAttention(), prepare=lambda _: accelerate_cpu(loaded.module, torch.float32)
        )
    except ModelLoadError as error:
        refused = " cannot be served: "
        if refused not in str(error):
            return Verdict(family, "failed", str(error))
        return Verdict(family, "refused", str(error).partition(refused)[2])
    except UnsupportedModel as error:
        return Verdict(family, "refused", str(error))
    return Verdict(family, "served", path=path)


def _path(module: PreTrainedModel) -> tuple[str, ...]:
    """How a model is served: its layers, its steps on a GPU, its states, its experts, and the formats for its
    weights."""
    parts = list(module.modules())
    config = module.config.get_text_config()
    functions = {name for part in parts for name in stateful_functions(type(part))}
    experts = ""
    names = {type(part).__name__ for part in parts}
    if any((getattr(config, count, None) or 1) > 1 for count in COUNTS) or any("Experts" in n for n in names):
        experts = "packed" if any(has_experts(part) for part in parts) else "its own"
    return (
        layers_of(module),
        "" if has_indexers(module) else "decodes" if functions else "steps",
        ", ".join(STATES[name] for name in sorted(functions)),
        experts,
        ", ".join(weights.name for weights in (INT8, INT4) if _takes(module, weights)),
        "CPU, GPU",
    )


def layers_of(module: PreTrainedModel) -> str:
    """Whose layers run a model."""
    if known(module, frozenset(TYPES)) is not None:
        return "fused"
    return "transformers'" if known(module, frozenset(TYPES), states=True) is None else "fused on a CPU"


def _takes(module: PreTrainedModel, weights: WeightFormat) -> bool:
    """Whether a model can have its weights in a format; rounding says nothing about so small a model."""
    try:
        accelerate_cpu(copy.deepcopy(module), torch.float32, weights=replace(weights, error=inf))
    except UnsupportedModel:
        return False
    return True


def save_small(config: PreTrainedConfig, folder: Path) -> None:
    """Write a random model of this configuration. Raises ValueError if it is not small."""
    torch.manual_seed(0)
    model = auto_class(config).from_config(config).float()
    size = sum(parameter.numel() for parameter in model.parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size:,} numbers are not small")
    enlarge(model)
    model.save_pretrained(folder)


def judge_apart(family: str, judge: Callable[[str], Verdict] = judge) -> Verdict:
    """As `judge`, in a process of its own with bounded time and memory, so that a family harms no other."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.families"])
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_judge_and_tell, args=(family, judge, there))
    child.start()
    there.close()
    try:
        if not here.poll(4 * MAX_CPU_S):
            return Verdict(family, "failed", "it took too long")
        verdict: Verdict = here.recv()
        return verdict
    except EOFError:
        child.join()
        return Verdict(family, "failed", f"its process ended with {child.exitcode}")
    finally:
        child.kill()
        child.join()


def _judge_and_tell(family: str, judge: Callable[[str], Verdict], answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        verdict = judge(family)
    except BaseException as error:
        verdict = Verdict(family, "failed", f"{type(error).__name__}: {error}")
    answer.send(verdict)


def table_row(verdict: Verdict) -> str:
    """As it stands in docs/models.md: in the table of those that are served, or of those that are refused."""
    words = verdict.path if verdict.outcome == "served" else (verdict.reason,)
    cells = (f"`{verdict.family}`", class_name(verdict.family), *words)
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
