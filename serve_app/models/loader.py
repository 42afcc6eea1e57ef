"""A model's name in the settings -> a module with its weights, ready for the engine.

Safetensors only, and never code from a checkpoint. It does not depend on the engine: the module has whichever
attention transformers chose.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from serve_app.codes.tensor import CodedTensor
from serve_app.config import ModelConfig
from serve_app.config.quantization import FORMATS, keeps_codes
from serve_app.models.dtype import choose_device, choose_dtype, stored_dtype
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import check_files, eos_token_ids, quantisation, read_settings
from serve_app.models.guards import (
    architecture_of,
    auto_class,
    check_config,
    context_window,
    pin_rope,
    reads_more_than_text,
)
from serve_app.models.quantised.converted import converted_tensors, empty_biases
from serve_app.models.quantised.formats import reader_of, without_quantisation
from serve_app.models.quantised.packed import Reader
from serve_app.models.quantised.plan import Plan, check_plain
from serve_app.models.source import locate
from serve_app.models.split.split import Split
from serve_app.models.stored import parts_of, stored_tensors, weight_files
from serve_app.models.streamed import streamed_tensors, streams_to
from serve_app.models.text_alone import language_model

_BUFFERS: Final = (".inv_freq", ".masked_bias")  # of old releases, in layers


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A causal language model in eval mode on its device, and facts about it for the server."""

    name: str
    architecture: str
    module: PreTrainedModel
    config: PreTrainedConfig
    folder: Path  # with the tokenizer's files
    revision: str | None  # the hub's commit
    dtype: torch.dtype
    codes: bool  # whether its weights are those of a quantised checkpoint, as codes
    device: torch.device
    context_window: int  # tokens the positions allow; the cache may hold fewer
    vocab_size: int  # of the configuration; the module's own width is what counts
    eos_token_ids: tuple[int, ...]
    split: Split | None  # the part of the model that `module` is; None: all of it


def load_model(
    config: ModelConfig,
    progress: Callable[[str], None],
    *,
    fast_bfloat16: bool = False,
    rank: int = 0,
) -> LoadedModel:
    """Find, check and load the model of `config`; `progress` is called with a line for each stage.

    `fast_bfloat16`: whether the engine is fast in bfloat16 even on a CPU without bfloat16 instructions.
    Quantised weights are CodedTensors if `keeps_codes`, else plain numbers.
    `rank`: which of the parts of a model that is divided among ranks.

    Raises ModelLoadError if the model is missing or must not be served; the message says what to do.
    """
    folder, revision = locate(config.source, config.revision, progress)
    check_files(folder)
    hf_config = read_config(folder)
    check_config(hf_config)
    window = context_window(hf_config, config.engine.max_model_len)
    text = hf_config.get_text_config()
    device = choose_device(config.device)
    if device.type not in FORMATS[config.quantization].devices:
        raise ModelLoadError(
            f"{config.name}: quantization {config.quantization} is for models on "
            f"{FORMATS[config.quantization].where}; this one would run on {device}. Choose another format"
        )
    if device.type == "cpu" and config.engine.kv_cache_dtype == "fp8":
        raise ModelLoadError(
            f"{config.name}: engine.kv_cache_dtype fp8 is for models on a GPU; this one would run on cpu. "
            "int8 is for both"
        )
    stored = stored_dtype(folder, text.dtype or hf_config.dtype)
    dtype = choose_dtype(
        config.dtype, stored, device, progress, fast_bfloat16=fast_bfloat16, model_type=text.model_type
    )
    architecture = architecture_of(hf_config)
    size = sum(path.stat().st_size for path in weight_files(folder))
    progress(
        f"loading {architecture}, {size / 2**20:,.0f} MiB of weights, "
        f"in {str(dtype).removeprefix('torch.')} on {device}"
    )
    reader = reader_of(hf_config)
    without_quantisation(hf_config)
    keep = reader is not None and keeps_codes(config.dtype, config.quantization, device.type)
    kind, split = auto_class(hf_config), None
    if config.ranks > 1:
        split = Split.of_rank(empty_module(kind, hf_config), rank, config)
        for part, reason in split.repeated.items():
            progress(f"{part} is the same in every rank: {reason}")
    # Weights that the engine packs are read layer by layer, so that they never take their own size besides.
    late = reader is None and (device.type == "cpu" or config.quantization != "none")
    module = read_weights(kind, folder, hf_config, dtype, device, progress, reader, keep or late, split)
    if reads_more_than_text(hf_config):
        module = language_model(module)
        progress("text only: its parts for images and sound are not used, requests that have any are refused")
    module.config.get_text_config().vocab_size = text.vocab_size  # a part has fewer rows
    if reader is not None and config.quantization != "none":
        progress(f"quantization {config.quantization} rounds its weights a second time")
    note = pin_rope(module, hf_config, window)
    if note is not None:
        progress(note)
    progress(f"loaded {config.name}: context window {window} tokens")
    return LoadedModel(
        name=config.name,
        architecture=architecture,
        module=module,
        config=hf_config,
        folder=folder,
        revision=revision,
        dtype=dtype,
        codes=keep,
        device=device,
        context_window=window,
        vocab_size=text.vocab_size,
        eos_token_ids=eos_token_ids(folder, text.vocab_size),
        split=split,
    )


def read_config(folder: Path) -> PreTrainedConfig:
    """The configuration in `folder`. Raises ModelLoadError if it is damaged or of an unknown type."""
    raw = read_settings(folder)
    model_type = raw.get("model_type")
    if model_type not in CONFIG_MAPPING:
        name = (raw.get("architectures") or [model_type])[0]
        reason = (
            "it needs the Python code in its own repository, which is never run here"
            if "auto_map" in raw
            else "this release of transformers does not know its type"
        )
        raise ModelLoadError(f"{name} (model_type {model_type!r}) cannot be served: {reason}")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise ModelLoadError(f"the config.json in {folder} is not valid: {error}") from error
    settings = quantisation(raw)
    if settings is not None and quantisation(config.to_dict()) is None:
        config.quantization_config = dict(settings)
    return config


def read_weights(
    kind: Any,
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[str], None],
    reader: Reader | None = None,
    keep_codes: bool = False,
    split: Split | None = None,
    /,
    **options: Any,
) -> PreTrainedModel:
    """The module of transformers' auto class `kind`, in eval mode, on `device`; `options` go to that class.

    Tensors are loaded onto a GPU one by one, so that the machine's own memory never holds them all. If they
    are quantised, `reader` reads them, and they are converted to `dtype` one by one. With `keep_codes`
    weights become CodedTensors; plain ones stay in their files until they are used. With `split`, only that
    part of each tensor is kept.

    Raises ModelLoadError when a tensor is missing, unused or not finite, and when the weights do not fit.
    """
    architecture = architecture_of(config)
    try:
        stored = stored_tensors(folder) if split is None else split.needed(stored_tensors(folder))
        if reader is None:
            check_plain(stored)
            streams = split is not None or streams_to(device)
            vocabulary = config.get_text_config().vocab_size if split is None else split.vocab_rows
            stored = stored if split is None else list(parts_of(stored, split.cut_of))
            tensors: Any = (
                streamed_tensors(stored, device, late=keep_codes, vocabulary=vocabulary)
                if streams or keep_codes
                else None
            )
        else:
            plan = Plan.of(stored, reader)
            plan = plan if split is None else plan.part(split.cut_of)
            tensors = converted_tensors(plan, device, dtype, keep_codes=keep_codes)
            for line in plan.lines(reader.label, dtype, keep_codes=keep_codes):
                progress(line)
        module, report = _load(
            kind,
            folder,
            config,
            tensors,
            split,
            dtype=dtype,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(
            f"the weights of {architecture} in {folder} do not fit into the memory that this replica has of "
            f"{device}: free some, give it a larger part of the GPU, or choose a smaller model or dtype"
        ) from error
    except (SafetensorError, OSError, ValueError, RuntimeError, ImportError) as error:
        if split is not None and "ignore_mismatched_sizes" in str(error):
            raise ModelLoadError(
                f"{architecture} cannot be divided among ranks: its checkpoint has "
                "tensors of other names than its layers"
            ) from error
        raise ModelLoadError(
            f"the weights of {architecture} in {folder} could not be read: {error}; fetch the model again"
        ) from error
    except (AttributeError, KeyError, TypeError) as error:  # transformers met an unexpected setting
        raise ModelLoadError(
            f"transformers could not build {architecture} from the config.json in {folder} "
            f"({type(error).__name__}: {error}); check that the file is the checkpoint's own"
        ) from error
    unexpected = report["unexpected_keys"]
    if reader is not None:
        unexpected = set(unexpected) - set(empty_biases(plan, unexpected))
    check_names(module, folder, report["missing_keys"], unexpected, progress, quantised=reader is not None)
    loaded: PreTrainedModel = module.eval().to(device)
    check_finite(loaded, folder)
    return loaded


def _load(
    kind: Any, folder: Path, config: PreTrainedConfig, tensors: Any, split: Split | None, **options: Any
) -> Any:
    """The result of `from_pretrained`, with `tensors`, or else those of `folder` on the CPU."""
    if tensors is None:
        return kind.from_pretrained(folder, config=config, use_safetensors=True, **options)
    # Only a model's own class accepts tensors instead of a folder, and `kind` is not that class.
    empty = empty_module(kind, config)
    if split is None:
        return type(empty).from_pretrained(None, config=empty.config, state_dict=tensors, **options)
    own: Any = split.class_of(type(empty))
    module, report = own.from_pretrained(None, config=empty.config, state_dict=tensors, **options)
    module.__class__ = type(empty)
    split.finish(module)
    return module, report


def empty_module(kind: Any, config: PreTrainedConfig) -> PreTrainedModel:
    """The module of transformers' auto class `kind`, on the meta device."""
    with torch.device("meta"):
        made: PreTrainedModel = kind.from_config(copy.deepcopy(config), trust_remote_code=False)
    return made


# Transformers fills missing tensors with random numbers, drops tensors that it does not know, and loads NaN
# like any number; each would be served silently.
def check_names(
    module: nn.Module,
    folder: Path,
    missing: Iterable[str],
    unexpected: Iterable[str],
    progress: Callable[[str], None],
    *,
    quantised: bool = False,
) -> None:
    """Raise ModelLoadError for a missing tensor, and for one that an existing layer ignores: a weight or a
    bias, and in a quantised checkpoint any tensor but a buffer of old releases.

    Tensors of parts that the module does not have at all (a vision tower, layers that only draft) do not
    change its results; `progress` gets a line.
    """
    kind = type(module).__name__
    if lacking := sorted(missing):
        raise ModelLoadError(
            f"the weights in {folder} lack {len(lacking)} tensors of {kind}, such as {lacking[0]}; "
            "the download is incomplete or the checkpoint is of another architecture"
        )
    layers = {
        f"{name}.{child}"
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList)
        for child, _ in part.named_children()
    }
    ignored = sorted(unexpected)
    changing = [
        name
        for name in ignored
        if _is_of(name, layers)
        and (name.endswith((".weight", ".bias")) or (quantised and not name.endswith(_BUFFERS)))
    ]
    if changing:
        raise ModelLoadError(
            f"the weights in {folder} have {len(changing)} tensors that layers of {kind} do not use, such as "
            f"{changing[0]}: it would compute something else than they were trained for; check that "
            "config.json belongs to these weights (a bias or a norm that it switches off?)"
        )
    if ignored:
        progress(f"{len(ignored)} tensors are not used by {kind}, such as {ignored[0]}")


def _is_of(name: str, layers: Set[str]) -> bool:
    """Whether a tensor is inside one of `layers`."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in layers for end in range(1, len(parts) - 1))


def check_finite(module: nn.Module, folder: Path) -> None:
    """Raise ModelLoadError if a weight has a number that is not finite; the message names the weight.

    Codes are checked when they are read.
    """
    with torch.inference_mode():
        for name, weight in module.named_parameters():
            if isinstance(weight, CodedTensor):
                continue
            if weight.numel() and not torch.stack(torch.aminmax(weight)).isfinite().all():
                raise ModelLoadError(
                    f"the weights in {folder} hold numbers that are not finite in {name}: every answer would "
                    "be noise; fetch the model again, or choose another revision or dtype"
                )
