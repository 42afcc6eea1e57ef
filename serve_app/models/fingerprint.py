"""A digest of everything that decides a model's tokens: equal digests, equal answers.

Weights are sampled, not read: a few blocks of every tensor, with its name, type and shape. A training
step changes almost every number of a tensor, so blocks show it. 100 GB take seconds. Names of
folders, shards, the device and the sizes of batches have no part in it. Knows files and settings only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import version
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Final

from serve_app.config import ModelConfig
from serve_app.models.files import INDEX, WEIGHTS, read_json
from serve_app.models.peft import find_folder

BLOCK: Final = 512  # bytes read at the start, in the middle and at the end of each tensor
# Files of a model besides its weights: configuration, tokenizer, templates.
_TEXT_SUFFIXES: Final = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken"})
# Code that turns the same files into tokens.
_PACKAGES: Final = ("serve-app", "torch", "transformers", "tokenizers", "llguidance")
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"


def fingerprint(config: ModelConfig, folder: Path, dtype: str) -> str:
    """The digest of the model in `folder` as `config` serves it, computed in `dtype`: 32 characters."""
    adapters = sorted((name, find_folder(source)) for name, source in config.adapters.items())
    digest = blake2b(digest_size=16)
    for part in chain(
        _settings(config, dtype),
        _folder(folder, "model"),
        *(_folder(place, f"adapter {name}") for name, place in adapters),
    ):
        digest.update(blake2b(part).digest())
    return digest.hexdigest()


def _settings(config: ModelConfig, dtype: str) -> Iterator[bytes]:
    engine = config.engine
    template = config.chat_template
    said = {
        "dtype": dtype,
        "quantization": config.quantization,
        "generation_config": config.model_dump(mode="json", include={"generation_config"}),
        "tool_format": config.tool_format,
        "reasoning_format": config.reasoning_format,
        "compact_json": config.compact_json,
        "max_output_tokens": config.max_output_tokens,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "max_model_len": engine.max_model_len,
        "watermark_key": engine.watermark_key,
        "logits_processors": engine.logits_processors,
        "packages": {name: version(name) for name in _PACKAGES},
    }
    yield json.dumps(said, sort_keys=True).encode()
    yield b"" if template is None else template.read_bytes()


def _folder(folder: Path, role: str) -> Iterator[bytes]:
    """The parts of a folder with weights; `role` keeps the model apart from its adapters."""
    yield role.encode()
    for path in sorted((*folder.glob("*"), *folder.glob("additional_chat_templates/*"))):
        if path.suffix in _TEXT_SUFFIXES and path.name != INDEX and path.is_file():
            yield path.relative_to(folder).as_posix().encode()
            yield path.read_bytes()
    # A model may be cut into shards in many ways, so tensors are put into one order.
    yield from (part for _, part in sorted(pair for path in _weights(folder) for pair in _tensors(path)))


def _weights(folder: Path) -> list[Path]:
    """The files that hold the weights; others may lie beside them."""
    for name in (WEIGHTS, _ADAPTER_WEIGHTS):
        if (folder / name).is_file():
            return [folder / name]
    names = read_json(folder / INDEX).get("weight_map") or {}
    return [folder / name for name in sorted(set(names.values()))]


def _tensors(path: Path) -> Iterator[tuple[str, bytes]]:
    """The name of each tensor in a safetensors file, and its header entry with some of its bytes."""
    with path.open("rb", buffering=0) as file:
        length = int.from_bytes(file.read(8), "little")
        for name, entry in json.loads(file.read(length)).items():
            if name == "__metadata__":
                continue
            start, end = entry["data_offsets"]
            head = f"{name} {entry['dtype']} {entry['shape']} {end - start} ".encode()
            yield name, head + b"".join(_blocks(file, 8 + length + start, end - start))


def _blocks(file: FileIO, start: int, size: int) -> Iterator[bytes]:
    """Some bytes of a tensor of `size` bytes at `start`; all of a small one."""
    places = (0, size // 2, size - BLOCK) if size > 3 * BLOCK else range(0, size, BLOCK)
    for place in places:
        file.seek(start + place)
        yield file.read(min(BLOCK, size - place)) or b""
