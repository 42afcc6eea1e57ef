"""Small random models with states: one of each kind, its widths those of whole vectors as real ones are."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.support.families import small_config
from tests.support.tiny_models import enlarge

BASE: Final[dict[str, Any]] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA: Final = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
MAMBA: Final = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "bamba": {**MAMBA, "attn_layer_indices": [1, 3]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128},
    "lfm2": {
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention"] * 2,
        "block_auto_adjust_ff_dim": False,
    },
    "lfm2_moe": {
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention"] * 2,
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2},
    "minimax": {
        "head_dim": 16,
        "block_size": 16,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "linear_attn_alpha_factor": 1.5,
        "linear_attn_beta_factor": 0.75,
    },
    "nemotron_h": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "mlp"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "head_dim": 16,
    },
    "olmo_hybrid": {key: value for key, value in DELTA.items() if key != "head_dim"},
    "qwen3_5_text": DELTA,
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid", "hybrid"],
        "num_key_value_heads": 4,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "adapter_rank": 16,
        "use_mem_rope": True,
        "chunk_size": 16,
        "n_mamba_heads": 8,
        "mamba_d_state": 16,
        "mamba_ngroups": 2,
    },
}
# Families that are built of the same kinds of states, some with experts or latent attention beside them.
KIN: Final = (
    *("bailing_hybrid", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "mamba"),
    *("qwen3_5_moe_text", "qwen3_next"),
)


@cache
def tiny_stateful(kind: str) -> PreTrainedModel:
    """A float32 model that nothing may change; its weights are large enough for errors to show."""
    torch.manual_seed(0)
    own = KINDS.get(kind)
    config = small_config(kind) if own is None else AutoConfig.for_model(kind, **{**BASE, **own})
    config.max_position_embeddings = BASE["max_position_embeddings"]
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    enlarge(model)
    return model
