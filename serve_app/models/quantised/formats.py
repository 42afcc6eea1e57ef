"""The registry of formats: which reader a checkpoint's `quantization_config` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from transformers import PreTrainedConfig

from serve_app.models.errors import ModelLoadError
from serve_app.models.files import QUANTISATION, quantisation
from serve_app.models.quantised.awq import Awq
from serve_app.models.quantised.bitsandbytes import Bitsandbytes
from serve_app.models.quantised.compressed_tensors import CompressedTensors
from serve_app.models.quantised.fp8 import Fp8
from serve_app.models.quantised.gguf import Gguf
from serve_app.models.quantised.gptq import Gptq
from serve_app.models.quantised.mxfp4 import Mxfp4
from serve_app.models.quantised.nvfp4 import Nvfp4
from serve_app.models.quantised.packed import Reader

# By `quant_method`, and by `quant_algo` too where a method has several formats.
FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any]], Reader]]] = {
    "awq": Awq.of,
    "bitsandbytes": Bitsandbytes.of,
    "compressed-tensors": CompressedTensors.of,
    "fbgemm_fp8": Fp8.of,
    "fp8": Fp8.of,
    "gguf": Gguf.of,
    "gptq": Gptq.of,
    "modelopt FP8": Fp8.of,
    "modelopt NVFP4": Nvfp4.of,
    "mxfp4": Mxfp4.of,
}


def reader_of(config: PreTrainedConfig) -> Reader | None:
    """The reader for a checkpoint; None if it is not quantised.

    Raises ModelLoadError, with the reason, if its format is not read here.
    """
    settings = quantisation(config.to_dict())
    return None if settings is None else reader_for(settings)


def reader_for(settings: Mapping[str, Any]) -> Reader:
    """The reader for a `quantization_config`. Raises ModelLoadError as `reader_of`."""
    default = "compressed-tensors" if "config_groups" in settings else ""
    method = " ".join(str(settings[key]) for key in ("quant_method", "quant_algo") if settings.get(key))
    method = method or default
    if method not in FORMATS:
        raise ModelLoadError(
            f"its weights are quantised as {method or 'an unnamed format'}, which is not read here; choose a "
            f"repository in one of the formats {', '.join(sorted(FORMATS))}, or with 16-bit weights"
        )
    try:
        return FORMATS[method](settings)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(
            f"its quantization_config is not valid ({type(error).__name__}: {error})"
        ) from error


def without_quantisation(config: PreTrainedConfig) -> None:
    """Take the settings out of `config`, so that transformers builds and loads plain layers."""
    for owner in (config, config.get_text_config()):
        for key in QUANTISATION:
            owner.__dict__.pop(key, None)
