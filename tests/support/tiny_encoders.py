"""Small random models that embed, saved as their owners would, with a tokenizer of whole words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerFast

SPECIAL = ("<s>", "<pad>", "</s>")
WORDS = tuple(f"w{i}" for i in range(61))
WINDOW = 64  # tokens

_BASE: dict[str, Any] = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": WINDOW,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
_BEHIND_PADDING = {"max_position_embeddings": WINDOW + 2}  # whose positions begin behind the padding's
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": _BEHIND_PADDING,
    "xlm-roberta": _BEHIND_PADDING,
    "mpnet": _BEHIND_PADDING,
    "distilbert": {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48},
    "modernbert": {
        "local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 0, "sep_token_id": 2
    },
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 8, "num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 6},
    "gemma2": {"head_dim": 8, "num_key_value_heads": 2, "sliding_window": 4, "query_pre_attn_scalar": 8},
}


def tiny(kind: str, seed: int = 0) -> PreTrainedModel:
    """A random model of transformers' type `kind`, without a head."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**_BASE, **(ENCODERS | DECODERS)[kind]})
    return AutoModel.from_config(config).eval()


def save(
    module: PreTrainedModel,
    folder: Path,
    *,
    pooling: dict[str, Any] | None = None,
    normalize: bool = False,
    files: dict[str, Any] | None = None,
) -> Path:
    """Write model and tokenizer, with `pooling` in sentence-transformers' layout. `files`: more JSON."""
    module.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    extra = dict(files or {})
    if pooling is not None:
        parts = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
        extra["modules.json"] = [
            {
                "idx": i, "name": str(i), "path": f"{i}_{part}" if i else "",
                "type": f"sentence_transformers.models.{part}",
            }
            for i, part in enumerate(parts)
        ]  # fmt: skip
        extra["1_Pooling/config.json"] = pooling
    for name, content in extra.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """A word a token, between `<s>` and `</s>`."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *WORDS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[1]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<pad>"
    )
