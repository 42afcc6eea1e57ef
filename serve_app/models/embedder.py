"""A model's name in the settings -> an encoder or decoder without its head, for embedding.

As in `loader`, only safetensors are read, and code from a checkpoint is never run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_MAPPING,
    MODEL_MAPPING_NAMES,
)

from serve_app.config import ModelConfig
from serve_app.models.dtype import choose_device, choose_dtype, stored_dtype
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import check_files, read_json
from serve_app.models.guards import architecture_of, context_window, pin_rope
from serve_app.models.loader import read_config, read_weights
from serve_app.models.sentence import SentenceFormat, is_sentence_model, read_sentence_format
from serve_app.models.source import locate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEmbedder:
    """A module in eval mode on its device that returns hidden states, and facts about it for the server."""

    module: PreTrainedModel
    folder: Path  # with the tokenizer's files
    sentence: SentenceFormat
    dtype: torch.dtype
    device: torch.device
    first_position: int  # number of a text's first position
    window: int  # tokens of one text
    vocab_size: int
    causal: bool  # a token attends only to the tokens before it


def is_embedder(config: ModelConfig, folder: Path) -> bool:
    """Whether the model in `folder` is an embedder: by the setting if it says so, else by the files. Raises
    ModelLoadError."""
    if config.task != "auto":
        return config.task == "embed"
    if is_sentence_model(folder):
        return True
    raw = read_json(folder / "config.json")
    name = (raw.get("architectures") or [""])[0]
    languages = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)
    generates = any(name in _class_names(mapping) for mapping in languages)
    return not generates and (name in _class_names(MODEL_MAPPING_NAMES) or name.endswith("ForMaskedLM"))


def load_embedder(config: ModelConfig, progress: Callable[[str], None]) -> LoadedEmbedder:
    """Find, check and load the model of `config`; `progress` is called with a line for each stage.

    Raises ModelLoadError if the model is missing or must not be served; the message says what to do.
    """
    if config.quantization != "none":
        raise ModelLoadError(
            f"{config.name}: quantization {config.quantization} is not for models that embed. "
            "Take the setting out"
        )
    if config.engine.kv_cache_dtype != "auto":
        raise ModelLoadError(
            f"{config.name}: engine.kv_cache_dtype {config.engine.kv_cache_dtype} is not for models that "
            "embed: they have no cache. Take the setting out"
        )
    folder, _ = locate(config.source, config.revision, progress)
    check_files(folder)
    hf_config = read_config(folder)
    check_embedder(hf_config)
    sentence = read_sentence_format(folder)
    device = choose_device(config.device)
    text = hf_config.get_text_config()
    stored = stored_dtype(folder, text.dtype or hf_config.dtype)
    dtype = choose_dtype(config.dtype, stored, device, progress, model_type=text.model_type)
    progress(f"loading {architecture_of(hf_config)} in {str(dtype).removeprefix('torch.')} on {device}")
    module = read_weights(AutoModel, folder, hf_config, dtype, device, progress, **_without_head(hf_config))
    positions = context_window(hf_config, config.engine.max_model_len)
    note = pin_rope(module, hf_config, positions)
    if note is not None:
        progress(note)
    first = first_position(module)
    asked = config.engine.max_model_len or sentence.max_length or positions
    window = min(asked, positions - first)
    progress(f"loaded {config.name}: at most {window} tokens a text")
    return LoadedEmbedder(
        module=module,
        folder=folder,
        sentence=sentence,
        dtype=dtype,
        device=device,
        first_position=first,
        window=window,
        vocab_size=module.get_input_embeddings().weight.shape[0],
        causal=_is_causal(hf_config),
    )


def first_position(module: torch.nn.Module) -> int:
    """The index of a text's first position: after the padding position, if the position table has one."""
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, torch.nn.Embedding):
            return 0 if part.padding_idx is None else part.padding_idx + 1
    return 0


def check_embedder(config: PreTrainedConfig) -> None:
    """Raise ModelLoadError, naming the architecture and the reason, unless the model can embed."""
    name = architecture_of(config)
    reason = None
    if config.is_encoder_decoder:
        reason = "it is an encoder-decoder"
    elif type(config) not in MODEL_MAPPING:
        reason = "transformers has no model without a head of this type"
    elif config.get_text_config() is not config:
        reason = "it is made of several models; only text alone is embedded"
    elif getattr(config, "quantization_config", None):
        reason = "its weights are quantised; choose the repository with 16-bit weights"
    if reason is not None:
        raise ModelLoadError(f"{name} cannot be served as an embedder: {reason}")


def _without_head(config: PreTrainedConfig) -> dict[str, bool]:
    """The option that leaves out a module's own pooler: many checkpoints lack one, and ours replaces it."""
    option = "add_pooling_layer"
    return {option: False} if option in signature(MODEL_MAPPING[type(config)].__init__).parameters else {}


def _is_causal(config: PreTrainedConfig) -> bool:
    """Whether the model is a decoder: transformers has a causal but no masked language model for its type."""
    kind = config.model_type
    if getattr(config, "use_bidirectional_attention", False) or kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return bool(getattr(config, "is_decoder", False))
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _class_names(mapping: Any) -> set[str]:
    return {each for value in mapping.values() for each in ([value] if isinstance(value, str) else value)}
