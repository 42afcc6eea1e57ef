"""Small configurations of models that read images or sound too, made of transformers' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

from tests.support.tiny_models import WINDOW

TEXTS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
# Sizes of whatever reads images or sound, for whichever of these settings it has.
PART: Final[dict[str, Any]] = {
    "attention_heads": 2,
    "base_channels": 32,
    "channel_multiplier": [1, 1],
    "d_model": 32,
    "deepstack_visual_indexes": [0],
    "depth": 1,
    "depths": [1, 1, 1, 1],
    "embed_dim": 32,
    "embedding_size": 32,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "encoder_layers": 1,
    "ffn_dim": 48,
    "fullatt_block_indexes": [0],
    "head_dim": 16,
    "hidden_size": 32,
    "image_size": 28,
    "intermediate_layers_indices": [0],
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_global_layers": 1,
    "num_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "num_layers": 1,
    "num_mel_bins": 16,
    "num_res_blocks": 1,
    "out_hidden_size": 32,
    "output_dim": 32,
    "patch_size": 14,
    "projection_dim": 32,
    "spatial_merge_size": 2,
    "vision_output_dim": 32,
    "vocab_size": 96,
    "window_size": 28,
}
MROPE: Final = {
    "text_config": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    }
}
# Settings of a family's parts beyond their sizes.
DOTS3: Final = {
    "num_key_value_heads": 4,
    "shared_experts_intermediate_size": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 16,
}
MORE: Final[dict[str, dict[str, Any]]] = {
    "blip-2": {"qformer_config": {"encoder_hidden_size": 32}},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "cohere2_vision": {"alignment_intermediate_size": 64},
    "cohere_compass": {
        "text_config": {"rope_parameters": {"full_attention": MROPE["text_config"]["rope_parameters"]}}
    },
    "cosmos3_edge": MROPE,
    "diffusion_gemma": {"text_config": {"top_k_experts": 2, "num_experts": 4}},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", *["sparse"] * 3]}},
    "ernie4_5_vl_moe": {
        "text_config": {
            "moe_intermediate_size": [16, 16],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
        }
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "glm46v": MROPE,
    "glm4v": MROPE,
    "glm4v_moe": {"text_config": {**MROPE["text_config"], "head_dim": 16}},
    "glm_ocr": MROPE,
    "glmga": MROPE,
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "downsample_rate": "1/2",
        "spatial_target_layers": [0],
        "vision_config": {"hidden_size": 64},
    },
    "hunyuan_vl": {
        "text_config": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1, 1]}
        }
    },
    "inkling2": {"vision_config": {"text_hidden_size": 32}},
    "kimi_k25": {"text_config": {"num_key_value_heads": 4}},
    "kosmos-2": {"text_config": {"layers": 2, "attention_heads": 4}},
    "kosmos-2.5": {"text_config": {"layers": 2, "attention_heads": 4}},
    "kyutai_speech_to_text": {
        "codebook_size": 64,
        "audio_pad_token_id": 64,
        "codec_config": {"upsample_groups": 32},
    },
    "dots3_note": {
        "text_config": DOTS3,
        "vision_config": {
            "per_layer_config": {},
            "hidden_size": 16,
            "adapter_in_dim": 16,
            "adapter_out_dim": 32,
        },
        "audio_config": {"hidden_size": 16, "adapter_input_size": 16, "adapter_out_dim": 32},
    },
    "mistral4": {"num_key_value_heads": 4},
    "mistral_large4": {"text_config": {"num_key_value_heads": 4}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [0]}, "vision_config": {"num_hidden_layers": 1}},
    "muse_spark": {"audio_config": {"num_hidden_layers": 4}},
    "nemo_speechlm": {
        "text_config": {
            "layers_block_type": ["linear_attention", "full_attention", "moe", "mlp"],
            "ssm_state_size": 16,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
        },
        "audio_config": {"diarization_config": {"head_config": {"audio_hidden_size": 32}}},
        "word_timestamp_config": {"blank_token_id": 0},
    },
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "paddleocr_vl": MROPE,
    "qwen2_5_omni_thinker": MROPE,
    "qwen2_5_vl": MROPE,
    "qwen2_vl": MROPE,
    "vibevoice_asr": {
        f"{kind}_tokenizer_encoder_config": {"depths": [1] * 7, "num_filters": 4}
        for kind in ("acoustic", "semantic")
    },
    "step3p7": {"text_config": {"sliding_window": 6}},
}


def whole_class(model_type: str) -> str | None:
    """The class of transformers for the whole of a model that reads more than text; None if there is none."""
    found = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(model_type)
    return found[0] if isinstance(found, tuple) else found


def small_settings(model_type: str, text: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of every part, its kind included; `text`: sizes of a language model, for those that it has."""
    config = AutoConfig.for_model(model_type)
    has_text = any(getattr(config, name, None) for name in TEXTS)
    return _merged(_shrunk(config, {} if has_text else text, text), MORE.get(model_type, {}))


def _merged(settings: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        name: _merged(settings[name], value) if isinstance(settings.get(name), dict) else value
        for name, value in more.items()
    }
    return {**settings, **inner}


def _shrunk(config: PreTrainedConfig, sizes: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    known = config.to_dict()
    own = {
        name: value
        for name, value in sizes.items()
        if name in known and (known[name] is None or type(known[name]) is type(value))
    }
    if sizes is text and isinstance(known.get("sliding_window"), int):
        own |= WINDOW
    for name, part in vars(config).items():
        if isinstance(part, PreTrainedConfig):
            inner = _shrunk(part, text if name in TEXTS else PART, text)
            own[name] = {"model_type": part.model_type, **inner}
    return own
