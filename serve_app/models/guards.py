"""Decides which models are refused, before a weight is read: a refusal beats a wrong answer.

Covered here, from the configuration alone: models that are not causal decoders, attention that does not go
through transformers' interface, position biases (ALiBi), masks other than causal and sliding window, layers
that are not attention, quantised checkpoints of formats that are not read here, and rotary positions that
depend on the batch.

Not covered here: problems that only a forward pass reveals. The engine's dry run checks at load
that every layer calls attention once and that nothing else mixes tokens.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from serve_app.models.errors import ModelLoadError
from serve_app.models.quantised.formats import reader_of

LAYER_TYPES: Final = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
# Layers with a state, or with neither attention nor a state.
STATE_TYPES: Final = frozenset({"attention", "conv", "hybrid", "linear_attention", "mamba", "mlp", "moe"})
ALIBI_TYPES: Final = frozenset({"bloom", "mpt"})  # their configurations do not mention it

# Models whose layers attend to the tokens that an index chooses, in the one way that is known here.
INDEXED_TYPES: Final = frozenset(
    {
        "axk2",
        "deepseek_v32",
        "dots3_note_text",
        "glm_moe_dsa",
        "hy_v4",
        "mistral_large4_text",
    }
)

# Attributes of a configuration for masks or layers that our attention never sees.
FOREIGN: Final = {
    "index_topk": "sparse attention over an index",
}
# Functions and classes with a state that the engine computes, by their names in transformers' files.
STATE_FUNCTIONS: Final = frozenset(
    {
        "MiniMaxLightningAttention",
        "causal_conv1d_fn",
        "chunk_kimi_delta_attention",
        "mamba2_chunk_scan",
        "mamba_selective_scan",
        "torch_chunk_gated_delta_rule",
    }
)
# As FOREIGN, but only if the model's file has none of those functions.
FOREIGN_STATES: Final = {
    "layers_block_type": "layers that are not attention",
    "block_types": "layers that are not attention",
    "chunkwise_kernel": "xLSTM layers",
    "conv_L_cache": "convolution layers",
    "linear_num_value_heads": "linear attention layers",
    "mamba_d_state": "state-space layers",
    "mamba_num_heads": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
}
# Parts of a model that reads more than text.
SENSES: Final = (
    "vision_config",
    "audio_config",
    "vq_config",
    "codec_config",
    "projector_config",
    "acoustic_tokenizer_encoder_config",
)
# Model types whose other parts transformers builds with a library that is not installed here.
FOREIGN_LIBRARIES: Final = {"fast_vlm": "timm", "gemma3n": "timm", "perception_lm": "timm"}

_TEXT_ALONE: Final = "choose the text-only checkpoint of its family, or save its language model alone"


def architecture_of(config: PreTrainedConfig) -> str:
    """The name of the class that wrote the checkpoint, or else the model type."""
    return str((config.architectures or [config.model_type])[0])


def check_config(config: PreTrainedConfig) -> None:
    """Raise ModelLoadError, naming the architecture and the reason, unless the model can be served."""
    name, coded = architecture_of(config), "it is an encoder-decoder, this engine runs decoders"
    if config.is_encoder_decoder:  # whose text may be in either part
        raise _refused(name, coded)
    text = config.get_text_config()
    if text.is_encoder_decoder:
        raise _refused(name, coded)
    model_class = auto_class(config)._model_mapping[type(config)]
    if config.model_type in FOREIGN_LIBRARIES:
        library = FOREIGN_LIBRARIES[config.model_type]
        raise _refused(name, f"its vision part needs the library {library}; {_TEXT_ALONE}")
    try:
        reader_of(config)
    except ModelLoadError as error:
        raise _refused(name, str(error)) from error
    if text.model_type in ALIBI_TYPES or getattr(text, "alibi", False):
        raise _refused(name, "its positions are ALiBi biases, which paged attention here does not add")
    if getattr(config, "thinker_config", None):
        raise _refused(name, "it is several models: one thinks, others speak; save the first alone")
    if not getattr(text, "num_hidden_layers", None):
        raise _refused(name, "its configuration describes no layers of a language model")
    if 0 < text.num_hidden_layers <= (getattr(text, "num_kv_shared_layers", None) or 0):
        raise _refused(name, "it drafts for another model, whose cache it reads; serve that model")
    if getattr(text, "use_bidirectional_attention", None) not in (None, False, "vision"):  # images alone
        raise _refused(name, "its attention is bidirectional for text, and only causal attention is served")
    text_class = _class_of(MODEL_MAPPING, text) or model_class
    known = not STATE_FUNCTIONS.isdisjoint(vars(sys.modules[text_class.__module__]))
    keys = FOREIGN if known else {**FOREIGN, **FOREIGN_STATES}
    indexed = text.model_type in INDEXED_TYPES
    foreign = [why for key, why in keys.items() if getattr(text, key, None) and not indexed]
    served = LAYER_TYPES | (STATE_TYPES if known else set()) | ({"indexed_attention"} if indexed else set())
    others = sorted(set(getattr(text, "layer_types", None) or ()) - served)
    if others:
        foreign.insert(0, f"layers of type {', '.join(others)}")
    if foreign:
        raise _refused(name, f"it has {foreign[0]} of a kind that this engine does not run")
    takes_ours = getattr(text_class, "_can_set_attn_implementation", None)
    if takes_ours is not None and not takes_ours():
        raise _refused(
            name, "it mixes tokens by code of its own, not through transformers' attention interface"
        )


def auto_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that loads the whole checkpoint, even if the model reads more than text.

    Raises ModelLoadError if transformers has no such language model, or if another class wrote the
    checkpoint.
    """
    name, others = architecture_of(config), []
    for auto in (AutoModelForCausalLM, AutoModelForMultimodalLM):
        kind = _class_of(auto._model_mapping, config)
        # For some multimodal models, the causal language model takes the configuration of the text part only.
        if kind is None or (auto is AutoModelForCausalLM and _is_part(kind, config)):
            continue
        if not config.architectures or name == kind.__name__:
            return auto
        others.append(kind.__name__)
    if others:
        raise _refused(name, f"the checkpoint is no causal language model (that would be {others[0]})")
    raise _refused(name, "transformers has no causal language model of this type (an encoder only?)")


def _class_of(mapping: Any, config: PreTrainedConfig) -> Any:
    """The class that a mapping of transformers has for `config`; None if it has none."""
    if type(config) not in mapping:
        return None
    try:
        return mapping[type(config)]
    except ValueError:  # it names a class that it does not have
        return None


def _is_part(kind: Any, config: PreTrainedConfig) -> bool:
    return kind.config_class is not type(config) and reads_more_than_text(config)


def reads_more_than_text(config: PreTrainedConfig) -> bool:
    """Whether the model has parts for images or sound; if such a model is served, it is served for text
    alone."""
    return any(getattr(config, key, None) for key in SENSES)


def context_window(config: PreTrainedConfig, max_model_len: int | None) -> int:
    """The model's own window in tokens, as far as its positions are exact in a mixed batch.

    `longrope` has two sets of frequencies, for sequences within and beyond the
    original window, and transformers chooses one for the *whole batch*. Here one set has to serve every
    sequence: the short one, with the original window, or the long one if `max_model_len` exceeds that window
    (see `pin_rope`).
    """
    name, text = architecture_of(config), config.get_text_config()
    window = getattr(text, "max_position_embeddings", None) or max_model_len
    if not isinstance(window, int) or window < 2:
        raise _refused(
            name, "its configuration states no context window (max_position_embeddings); set max_model_len"
        )
    original = _longrope_window(text)
    if original is not None and (max_model_len is None or max_model_len <= original):
        window = min(window, original)
    if max_model_len is not None and max_model_len > window:
        raise ModelLoadError(
            f"{name}: max_model_len {max_model_len} is beyond its context window of {window} tokens; lower it"
        )
    return window


def pin_rope(module: torch.nn.Module, config: PreTrainedConfig, window: int) -> str | None:
    """Pin the frequencies of `dynamic` and `longrope` for `window`; returns the message for the operator.

    `dynamic` changes nothing up to the model's own window, which no sequence exceeds, so its first set is
    exact. With a pinned set, no sequence can change the positions of another sequence any more.
    """
    original = _longrope_window(config.get_text_config())
    beyond = original is not None and window > original
    for part in module.modules():
        kind: Any = getattr(part, "rope_type", None)
        if isinstance(kind, dict):
            if beyond and "longrope" in kind.values():
                raise _refused(
                    architecture_of(config), f"its longrope positions are exact up to {original} only"
                )
            part.rope_type = dict.fromkeys(kind, "default")  # type: ignore[assignment]
        elif kind == "dynamic" or kind == "longrope":
            if kind == "longrope" and beyond:
                _use_long_factors(part, int(original or 0))
            part.rope_type = "default"  # type: ignore[assignment]  # stops the update in every forward
    if original is None:
        return None
    if beyond:
        return f"positions: the long factors for every sequence, as max_model_len is beyond {original} tokens"
    return f"positions: the short factors, exact up to {original} tokens; max_model_len can ask for more"


def _use_long_factors(rope: Any, original: int) -> None:
    """Put the long frequencies in place by letting the module itself choose them once."""
    device = rope.inv_freq.device
    with torch.inference_mode(False), torch.no_grad():
        rope(torch.zeros(1, device=device), torch.tensor([[original + 1]], device=device))


def _longrope_window(text: PreTrainedConfig) -> int | None:
    """The original window of a longrope model; None for all others."""
    parameters: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    for one in (parameters, *(p for p in parameters.values() if isinstance(p, dict))):
        if one.get("rope_type") == "longrope":
            return int(one["original_max_position_embeddings"])
    return None


def _refused(name: str, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{name} cannot be served: {reason}")
