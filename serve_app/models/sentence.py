"""The settings for sentence vectors in a model folder, in sentence-transformers' layout.

`modules.json` lists the parts: the transformer, its pooling, perhaps a normalisation. Any other part would
change the vectors, so a model that has one is refused, and the error names the part.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serve_app.models.errors import ModelLoadError
from serve_app.models.files import read_json, read_json_list

# The key of 1_Pooling/config.json -> our word, in the order of concatenation.
_FLAGS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last",
}
# The values of its newer form, `"pooling_mode": "mean"` or a list of them.
_MODES: Final = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_UNLIMITED: Final = 10**6  # tokenizers without a limit state an astronomical one


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceFormat:
    """How sentences become vectors. A field that the folder does not set gets its default."""

    poolings: tuple[str, ...] = ()  # side by side; empty: the folder names none
    pools_prompt: bool = True  # the tokens of an instruction count as the text's own
    normalized: bool = False
    prompt: str = ""  # stands before every text that has no instruction
    lower_case: bool = False
    max_length: int | None = None  # tokens of one text


def is_sentence_model(folder: Path) -> bool:
    """Whether the folder is laid out as a sentence embedder."""
    return (folder / "modules.json").is_file()


def read_sentence_format(folder: Path) -> SentenceFormat:
    """Raises ModelLoadError for an unknown part or pooling; the message names it."""
    text = read_json(folder / "sentence_bert_config.json")
    prompts = read_json(folder / "config_sentence_transformers.json")
    limits = [
        value
        for value in (
            text.get("max_seq_length"),
            read_json(folder / "tokenizer_config.json").get("model_max_length"),
        )
        if isinstance(value, int) and 0 < value < _UNLIMITED
    ]
    poolings: tuple[str, ...] = ()
    normalized, pools_prompt = False, True
    for part in read_json_list(folder / "modules.json"):
        path = str(part.get("path") or "")
        kind = str(part.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            poolings, pools_prompt = _poolings(folder / path / "config.json")
        elif kind == "Normalize":
            normalized = True
        elif kind != "Transformer" or path not in ("", "."):
            raise ModelLoadError(
                f"the sentence embedder in {folder} has a part {kind} in {path or 'its folder'!r}, "
                "which is not supported"
            )
    default = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name"))
    return SentenceFormat(
        poolings=poolings,
        pools_prompt=pools_prompt,
        normalized=normalized,
        prompt=str(default or ""),
        lower_case=bool(text.get("do_lower_case")),
        max_length=min(limits, default=None),
    )


def _poolings(path: Path) -> tuple[tuple[str, ...], bool]:
    settings = read_json(path)
    mode = settings.get("pooling_mode")
    if mode is not None:
        wanted = [mode] if isinstance(mode, str) else list(mode)
        unknown = [str(each) for each in wanted if each not in _MODES]
        found = tuple(_MODES[each] for each in wanted if each in _MODES)
    else:
        on = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value]
        unknown = [key for key in on if key not in _FLAGS]
        found = tuple(word for key, word in _FLAGS.items() if key in on)
    if unknown or not found:
        raise ModelLoadError(
            f"{path} asks for a pooling that is not supported: {', '.join(unknown) or 'none'}"
        )
    return found, bool(settings.get("include_prompt", True))
