"""The least memory that a replica takes, read from a model's files without loading any.

The size of the weights follows from their headers and the settings, and that of the KV cache from config.json
and the settings. The figure is a lower bound: activations, adapters, scales, packed copies of weights, and a
cache beyond the settings' minimum are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from serve_app.config import EngineConfig, ModelConfig
from serve_app.config.quantization import CPU, FORMATS, GPU, bits_of, keeps_codes
from serve_app.models import hub
from serve_app.models.catalogue import DEMO_FOLDER, DEMO_PREFIX
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import quantisation, read_settings
from serve_app.models.source import gguf_files
from serve_app.models.stored import StoredTensor, stored_tensors

_FLOATS: Final[Mapping[str, int]] = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes by safetensors' names
_SCALE_BYTES: Final = 4  # of a key or value that is kept as codes
_NAMES: Final[Mapping[str, str]] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_WANTED: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}


def least_memory(config: ModelConfig) -> int | None:
    """Bytes of weights and of the smallest KV cache; None if the files are not on this machine."""
    try:
        found = _described(config)
        if found is None:
            return None
        shape, tensors = found
        item_bytes = _WANTED.get(config.dtype) or _declared_bytes(shape, tensors)
        vocabulary = (shape.get("text_config") or shape).get("vocab_size")
        device = GPU if config.device == GPU or CPU not in FORMATS[config.quantization].devices else CPU
        weights = weight_bytes(tensors, item_bytes, vocabulary, config.quantization, device)
        smallest = item_bytes or min((_FLOATS[each.dtype] for each in tensors if _is_float(each)), default=2)
        return weights + cache_bytes(shape, config.engine, smallest)
    except (OSError, ValueError, KeyError, TypeError, ModelLoadError):
        return None  # the start says what is wrong with the files


def weight_bytes(
    tensors: Sequence[StoredTensor],
    item_bytes: int | None,
    vocabulary: int | None,
    quantization: str,
    device: str,
) -> int:
    """Bytes of the weights in memory of `device`, by torch's name. `item_bytes`: the size of a number in the
    requested type, if a type was requested."""
    if FORMATS[quantization].bits:
        return _quantised_bytes(tensors, item_bytes, vocabulary, quantization, device)
    if device == CPU:
        return _compact_bytes(tensors, item_bytes, vocabulary)
    return sum(_tensor_bytes(each, item_bytes) for each in tensors)


def cache_bytes(shape: Mapping[str, Any], engine: EngineConfig, item_bytes: int) -> int:
    """Bytes of the smallest KV cache that the settings allow. `shape`: config.json."""
    if engine.kv_cache_bytes is not None and engine.num_blocks is None:
        return engine.kv_cache_bytes
    found = shape.get("text_config") or shape
    heads = found.get("num_attention_heads")
    if not heads or "kv_lora_rank" in found:  # no cache, or one of another form
        return 0
    kv_heads = found.get("num_key_value_heads") or heads
    head_dim = found.get("head_dim") or found["hidden_size"] // heads
    row_bytes = head_dim + _SCALE_BYTES if engine.kv_cache_dtype != "auto" else head_dim * item_bytes
    token_bytes: int = 2 * found["num_hidden_layers"] * kv_heads * row_bytes
    if engine.num_blocks is not None:
        return engine.num_blocks * engine.block_size * token_bytes
    return max(2 * engine.block_size, engine.max_model_len or 0) * token_bytes


def _described(config: ModelConfig) -> tuple[Mapping[str, Any], list[StoredTensor]] | None:
    """config.json and the tensors as they are served; None if the files are not on this machine."""
    if files := gguf_files(config.source) or hub.cached_gguf(config.source, config.revision):
        from serve_app.models.gguf.folder import describe

        shape, tensors, _ = describe(files)
        return shape, _served(tensors, shape, config)
    folder = local_folder(config)
    if folder is None:
        return None
    shape = read_settings(folder)
    return shape, _served(stored_tensors(folder), shape, config)


def local_folder(config: ModelConfig) -> Path | None:
    """Where the files of a model are on this machine; None: it has none, or is a GGUF file."""
    source = config.source
    if source.startswith(DEMO_PREFIX):
        folder = DEMO_FOLDER / source.removeprefix(DEMO_PREFIX)
    else:
        folder = Path(source).expanduser()
    return folder if folder.is_dir() else hub.cached(source, config.revision)


def _served(tensors: list[StoredTensor], shape: Mapping[str, Any], config: ModelConfig) -> list[StoredTensor]:
    """The tensors as they are served, if they are quantised in the files."""
    settings = quantisation(shape)
    if settings is None:
        return tensors
    from serve_app.models.quantised.formats import reader_for  # torch comes with it
    from serve_app.models.quantised.plan import Plan

    plan = Plan.of(tensors, reader_for(settings))
    text = shape.get("text_config") or shape
    named = next(
        (owner[key] for owner in (text, shape) for key in ("dtype", "torch_dtype") if key in owner), ""
    )
    dtype, device = _NAMES.get(str(named), "BF16"), GPU if config.device == GPU else CPU
    keeps = keeps_codes(config.dtype, config.quantization, device)
    return plan.kept(dtype, device) if keeps else plan.served(dtype)


def _declared_bytes(shape: Mapping[str, Any], tensors: Sequence[StoredTensor]) -> int | None:
    """Bytes per number in the type that config.json declares; None if a tensor is stored with fewer bytes."""
    text = shape.get("text_config") or shape
    named = (text.get("dtype"), shape.get("dtype"), text.get("torch_dtype"), shape.get("torch_dtype"))
    declared = next((_WANTED[str(name)] for name in named if name in _WANTED), None)
    stored = [_FLOATS[each.dtype] for each in tensors if _is_float(each)]
    return declared if declared is not None and declared <= min(stored, default=0) else None


def _is_float(tensor: StoredTensor) -> bool:
    return tensor.dtype in _FLOATS


def _quantised_bytes(
    tensors: Sequence[StoredTensor], item_bytes: int | None, vocabulary: int | None, kind: str, device: str
) -> int:
    """Bytes of all weights if linear layers are quantised to `kind`.

    One of the matrices with a row for each token is the embedding, which stays as it is. The files contain
    the head either as a sensitive matrix of its own, or as a copy of the embedding.
    """
    size = FORMATS[kind]
    total, embedding, head = 0, 0, 0
    for each in tensors:
        matrix = _is_float(each) and len(each.shape) in (2, 3)  # three: experts
        if matrix and each.shape[0] == vocabulary:
            embedding = max(embedding, _tensor_bytes(each, item_bytes))
            head = max(head, each.num_values)
        elif matrix:
            own = size.format_of(each.name.removesuffix(".weight"), kind)
            total += int(each.num_values * bits_of(own, device)) // 8
        else:
            total += _tensor_bytes(each, item_bytes)
    return total + embedding + int(head * bits_of(size.sensitive, device)) // 8


def _compact_bytes(tensors: Sequence[StoredTensor], item_bytes: int | None, vocabulary: int | None) -> int:
    """Bytes of all weights if matrices of two bytes per number take one and a half (see kernels/compact.py).

    Of the matrices with a row for each token, one is the embedding, which stays as it is.
    """
    total, embedding = 0, 0
    for each in tensors:
        size = _tensor_bytes(each, item_bytes)
        total += size
        if _is_float(each) and len(each.shape) in (2, 3) and size == 2 * each.num_values:
            total -= size // 4
            embedding = max(embedding, size if each.shape[0] == vocabulary else 0)
    return total + embedding // 4


def _tensor_bytes(tensor: StoredTensor, item_bytes: int | None) -> int:
    """Bytes in memory; floats count in the requested type, if a type was requested."""
    if item_bytes is not None and _is_float(tensor):
        return tensor.num_values * item_bytes
    return tensor.num_bytes
