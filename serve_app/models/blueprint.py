"""A model without memory for its weights, from its configuration alone: its modules and their shapes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.config.quantization import CPU, FORMATS, GPU, keeps_codes
from serve_app.models.dtype import choose_dtype, declared_dtype
from serve_app.models.embedder import check_embedder, is_embedder
from serve_app.models.errors import ModelLoadError
from serve_app.models.files import check_files
from serve_app.models.footprint import weight_bytes
from serve_app.models.guards import (
    architecture_of,
    auto_class,
    check_config,
    context_window,
    reads_more_than_text,
)
from serve_app.models.loader import read_config
from serve_app.models.quantised.formats import reader_of, without_quantisation
from serve_app.models.quantised.plan import Plan, check_tensors
from serve_app.models.source import locate
from serve_app.models.split.split import Split
from serve_app.models.stored import StoredTensor, stored_tensors
from serve_app.models.text_alone import language_model

_NAMES: Final = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A model that the guards accept."""

    architecture: str
    module: PreTrainedModel  # on torch's meta device, in eval mode; without a head if it embeds; of one rank
    embeds: bool
    text_alone: bool  # it reads more than text, and is served with text alone
    dtype: str  # that it would run in, by torch's name
    parameters: int  # of all ranks
    weight_bytes: int  # as served, of one rank
    converted_from: str | None  # the format of quantised weights; what does not stay codes is in `dtype`
    stays_codes: bool  # at least one weight, where the device has a product for it
    window: int  # tokens


def read_blueprint(
    config: ModelConfig, progress: Callable[[str], None], *, on_cpu: bool, rank: int = 0
) -> Blueprint:
    """Find the model of `config`, and read what describes it, or a rank of it. Raises ModelLoadError if the
    model is refused.

    No weights are downloaded from the hub. In a local folder the weights must exist, but are not read.
    """
    folder, revision = locate(config.source, config.revision, progress, weights=False)
    if revision is None:
        check_files(folder)
    hf_config = read_config(folder)
    embeds = is_embedder(config, folder)
    (check_embedder if embeds else check_config)(hf_config)
    if embeds and config.ranks > 1:
        raise ModelLoadError(f"{config.name}: {config.divided_by} is for models that generate")
    reader = reader_of(hf_config)
    if reader is not None and revision is None:
        check_tensors(folder, reader)
    without_quantisation(hf_config)
    text = hf_config.get_text_config()
    device, format_size = CPU if on_cpu else GPU, FORMATS[config.quantization]
    if device not in format_size.devices:
        raise ModelLoadError(f"{config.name}: quantization {config.quantization} is for {format_size.where}")
    dtype = _dtype(config, declared_dtype(text.dtype or hf_config.dtype) or torch.bfloat16, on_cpu)
    kind = AutoModel if embeds else auto_class(hf_config)
    text_alone = not embeds and reads_more_than_text(hf_config)

    module, vocab_size, split = _module(kind, hf_config, dtype), text.vocab_size, None
    served = language_model(module) if text_alone else module
    parameters = sum(each.numel() for each in served.parameters())
    if config.ranks > 1:
        module = _module(kind, hf_config, dtype)
        split = Split.of_rank(module, rank, config)
        for part, reason in split.repeated.items():
            progress(f"{part} is the same in every rank: {reason}")
        split.narrow(module)
        split.finish(module)
        vocab_size, served = split.vocab_rows, language_model(module) if text_alone else module
    weights = [
        StoredTensor(name, _NAMES[each.dtype], tuple(each.shape), Path(), 0, each.nbytes)
        for name, each in served.named_parameters()  # a tied weight counts once
    ]
    in_codes = False
    if reader is not None and revision is None and keeps_codes(config.dtype, config.quantization, device):
        stored = stored_tensors(folder)
        if split is None:
            plan = Plan.of(stored, reader)
        else:
            plan = Plan.of(split.needed(stored), reader).part(split.cut_of)
        if in_codes := plan.keeps_any(device):
            weights = plan.kept(_NAMES[dtype], device)
    size = weight_bytes(weights, dtype.itemsize, vocab_size, config.quantization, device)
    return Blueprint(
        architecture=architecture_of(hf_config),
        module=served,
        embeds=embeds,
        text_alone=text_alone,
        dtype=str(dtype).removeprefix("torch."),
        parameters=parameters,
        weight_bytes=size,
        converted_from=None if reader is None else reader.label,
        stays_codes=in_codes,
        window=context_window(hf_config, config.engine.max_model_len),
    )


def _dtype(config: ModelConfig, stored: torch.dtype, on_cpu: bool) -> torch.dtype:
    """The type that the weights have on a CPU with our kernels, or on a GPU with bfloat16."""
    if on_cpu or config.dtype != "auto":
        device = torch.device("cpu")
        return choose_dtype(config.dtype, stored, device, lambda line: None, fast_bfloat16=True)
    return stored


def _module(kind: Any, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model of transformers' auto class `kind`. Raises ModelLoadError if no model can be made from the
    settings."""
    try:
        with torch.device("meta"):
            made: Any = kind.from_config(copy.deepcopy(config), dtype=dtype, trust_remote_code=False)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, ImportError) as error:
        raise ModelLoadError(
            f"transformers could not build {architecture_of(config)} from its config.json "
            f"({type(error).__name__}: {error}); check that the file is the checkpoint's own"
        ) from error
    module: PreTrainedModel = made.eval()
    return module
