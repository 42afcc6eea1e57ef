"""The tokenizer files of a model folder -> one fast tokenizer, its named tokens and its chat templates.

Interprets the files as transformers does, so that the ids are the same: which tokens are added, and which
template wins. Whether BOS is prepended is decided by tokenizer.json alone, whatever the configuration says.
Never runs code from the folder. Independent of requests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTED = ("extra_special_tokens", "additional_special_tokens")


class TokenizerLoadError(Exception):
    """The folder contains no usable tokenizer; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The contents of the tokenizer files of a model folder."""

    backend: tokenizers.Tokenizer
    named_tokens: dict[str, str]  # "bos_token" -> "<s>"; what chat templates are given
    special_ids: frozenset[int]
    templates: dict[str, str]  # "default", and perhaps "tool_use"


def read_files(folder: Path) -> TokenizerFiles:
    """Read the tokenizer of `folder`.

    Raises TokenizerLoadError if there is no tokenizer or its files cannot be read.
    """
    config = _read_json(folder / "tokenizer_config.json")
    listed = _read_json(folder / "special_tokens_map.json") | config
    backend = _read_backend(folder)
    # A length limit or padding stored with the model would silently change prompts.
    backend.no_truncation()
    backend.no_padding()
    named = {name: text for name in _NAMED if (text := _content(listed.get(name))) is not None}
    _add_tokens(backend, config.get("added_tokens_decoder") or {})
    special = _mark_special(backend, [*named.values(), *_extra_tokens(listed)])
    return TokenizerFiles(backend, named, special, _read_templates(folder, config))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerLoadError(f"{path.name} is not JSON") from error
    if not isinstance(content, dict):
        raise TokenizerLoadError(f"{path.name} is not a JSON object")
    return content


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerLoadError("tokenizer.json cannot be read by the tokenizers library") from error
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise TokenizerLoadError(
            "the model has no tokenizer that can be loaded without its own code"
        ) from error
    backend = getattr(slow, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerLoadError("the model's tokenizer has no fast form (tokenizer.json)")
    return backend


def _content(token: object) -> str | None:
    """The text of a token that is stored as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _extra_tokens(listed: dict[str, Any]) -> list[str]:
    found: list[object] = []
    for name in _LISTED:
        value = listed.get(name) or []
        found += value.values() if isinstance(value, dict) else value
    return [text for token in found if (text := _content(token)) is not None]


def _add_tokens(backend: tokenizers.Tokenizer, decoder: dict[str, Any]) -> None:
    """Add the tokens that only tokenizer_config.json has, each under its own id."""
    for token_id in sorted(decoder, key=int):
        fields = decoder[token_id]
        known = backend.token_to_id(fields["content"])
        if known != int(token_id) and (known is not None or int(token_id) != backend.get_vocab_size()):
            continue
        flags = {k: bool(fields[k]) for k in ("single_word", "lstrip", "rstrip", "normalized") if k in fields}
        special = bool(fields.get("special"))
        token = tokenizers.AddedToken(fields["content"], special=special, **flags)
        if special:
            backend.add_special_tokens([token])
        else:
            backend.add_tokens([token])


def _mark_special(backend: tokenizers.Tokenizer, named: list[str]) -> frozenset[int]:
    added = backend.get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special}
    for text in named:
        token_id = backend.token_to_id(text)
        if token_id is None:  # a name without a token; adding one would leave the model's vocabulary
            continue
        if token_id not in added:
            backend.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False)])
        special.add(token_id)
    return frozenset(special)


def _read_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; a template in a file of its own overrides the configuration's entry."""
    found: dict[str, str] = {}
    stored = config.get("chat_template")
    if isinstance(stored, str):
        found["default"] = stored
    elif isinstance(stored, list):
        found |= {entry["name"]: entry["template"] for entry in stored}
    single = _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(single, str):
        found["default"] = single
    path = folder / "chat_template.jinja"
    if path.is_file():
        found["default"] = path.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    return found
