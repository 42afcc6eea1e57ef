"""A digest of everything that decides a model's tokens: equal digests, equal answers.

Weights are sampled, not read: a few blocks of every tensor, with its name, type and shape. A training step
changes almost every number of a tensor, so a few blocks show it. 100 GB take seconds. The digest does not
depend on names of folders and shards, the device, or batch sizes. Depends only on files and settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Final

from serve_app.config import ModelConfig
from serve_app.models.files import ELSEWHERE, INDEX, WEIGHTS
from serve_app.models.peft import find_folder
from serve_app.models.stored import StoredTensor, stored_tensors, tensors_of

BLOCK: Final = 512  # bytes read at the start, in the middle and at the end of each tensor
# Files of a model besides its weights: configuration, tokenizer, templates.
_TEXT_SUFFIXES: Final = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken"})
# Code that turns the same files into tokens.
_PACKAGES: Final = ("serve-app", "torch", "transformers", "tokenizers", "llguidance")
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"


def fingerprint(config: ModelConfig, folder: Path, dtype: str, *, codes: bool = False) -> str:
    """A 32-character digest of the model in `folder`, as served with `config` and run in `dtype`, with its
    quantised weights as `codes` or in that type."""
    adapters = sorted((name, find_folder(source)) for name, source in config.adapters.items())
    digest = blake2b(digest_size=16)
    for part in chain(
        _settings(config, dtype, codes=codes),
        _folder(folder, "model"),
        *(_folder(place, f"adapter {name}") for name, place in adapters),
    ):
        digest.update(blake2b(part).digest())
    return digest.hexdigest()


def _settings(config: ModelConfig, dtype: str, *, codes: bool) -> Iterator[bytes]:
    engine = config.engine
    template = config.chat_template
    said = {
        "dtype": dtype,
        "codes": codes,
        "quantization": config.quantization,
        "tensor_parallel": config.tensor_parallel,  # sums in another order
        "expert_parallel": config.expert_parallel,
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
    """The digest's input for a folder with weights; `role` distinguishes the model from its adapters."""
    yield role.encode()
    for path in sorted((*folder.glob("*"), *folder.glob("additional_chat_templates/*"))):
        if path.suffix in _TEXT_SUFFIXES and path.name not in (INDEX, ELSEWHERE) and path.is_file():
            yield path.relative_to(folder).as_posix().encode()
            yield path.read_bytes()
    adapter = folder / _ADAPTER_WEIGHTS
    is_adapter = adapter.is_file() and not (folder / WEIGHTS).is_file()
    tensors = tensors_of(adapter) if is_adapter else stored_tensors(folder)
    # A model may be cut into shards in many ways, so tensors are put into one order.
    for tensor in sorted(tensors, key=lambda each: each.name):
        for part in tensor.pieces or (tensor,):
            yield _sample(part)


def _sample(tensor: StoredTensor) -> bytes:
    """A tensor's entry in the header, and a sample of its bytes, or all bytes if the tensor is small."""
    size = tensor.num_bytes
    sample = f"{tensor.name} {tensor.dtype} {list(tensor.shape)} {size} ".encode()
    with tensor.path.open("rb", buffering=0) as file:
        for place in (0, size // 2, size - BLOCK) if size > 3 * BLOCK else range(0, size, BLOCK):
            file.seek(tensor.start + place)
            sample += file.read(min(BLOCK, size - place)) or b""
    return sample
