"""Which number type a model runs in, and on which device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open

from serve_app.models.errors import ModelLoadError

# Safetensors' names of the types that weights come in.
_STORED: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float32}
_NAMED: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BFLOAT16_SINCE: Final = (8, 0)  # compute capability
# Model types whose values exceed float16's range. vLLM refuses float16 for all but their relative Gemma 3n.
_WIDE: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "glm4", "plamo2"})


def choose_device(wanted: str) -> torch.device:
    """`auto` is CUDA if there is a GPU; if CUDA is requested and there is no GPU, raises ModelLoadError."""
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise ModelLoadError(
            "device is cuda but PyTorch finds none: check the driver, or set device to auto or cpu"
        )
    return torch.device("cuda" if wanted != "cpu" and has_cuda else "cpu")


def choose_dtype(
    wanted: str,
    stored: torch.dtype,
    device: torch.device,
    progress: Callable[[str], None],
    *,
    fast_bfloat16: bool = False,
    model_type: str = "",
) -> torch.dtype:
    """The type to run in. `auto` is the type of the checkpoint. But a CPU never runs float16. It runs
    bfloat16 only with instructions for that type, or if the caller's own kernels are fast in bfloat16
    (`fast_bfloat16`); else it runs float32. A GPU without bfloat16 runs float16 instead, or float32 for a
    `model_type` whose values exceed float16's range.
    """
    dtype = stored if wanted == "auto" else _NAMED[wanted]
    if device.type != "cpu":
        if wanted != "auto" or dtype != torch.bfloat16 or gpu_has_bfloat16(device):
            return dtype
        if model_type in _WIDE:
            progress("this GPU has no bfloat16, and float16 is too narrow for this model: running in float32")
            return torch.float32
        progress(
            "this GPU has no bfloat16: running in float16, whose numbers end at 65,504; if answers are "
            "broken, `dtype: float32` keeps the range, in twice the memory"
        )
        return torch.float16
    if dtype == torch.float32:
        return dtype
    if wanted == "bfloat16":
        return dtype
    chosen = torch.bfloat16 if fast_bfloat16 or cpu_has_bfloat16() else torch.float32
    if dtype == torch.float16:
        progress(f"float16 is slow on a CPU: running in {str(chosen).removeprefix('torch.')}")
    if dtype == torch.float16 and chosen == torch.bfloat16:
        progress(
            "bfloat16 rounds weights to 8 significant bits, float16 has 11; `dtype: float32` keeps them all, "
            "in twice the memory"
        )
    return chosen


def cpu_has_bfloat16() -> bool:
    """Whether matrix products in bfloat16 run in hardware (AVX-512 BF16 or AMX)."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(check() for name in checks if (check := getattr(torch.cpu, name, None)))


def gpu_has_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 run in hardware, as they do since NVIDIA's Ampere."""
    return torch.cuda.get_device_capability(device) >= _BFLOAT16_SINCE


def declared_dtype(declared: object) -> torch.dtype | None:
    """The type to run in, given the type that a configuration declares; None if it declares no type."""
    if not isinstance(declared, torch.dtype) or not declared.is_floating_point:
        return None
    return declared if declared in _NAMED.values() else torch.float32


def stored_dtype(folder: Path, declared: object) -> torch.dtype:
    """The checkpoint's type: the one that its configuration declares, else that of the matrices in its
    largest file."""
    found = declared_dtype(declared)
    if found is not None:
        return found
    largest = max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    try:
        with safe_open(largest, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118  # a handle, not a dict
                part = weights.get_slice(key)
                if len(part.get_shape()) > 1 and part.get_dtype() in _STORED and "scale" not in key:
                    return _STORED[part.get_dtype()]
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{largest} could not be read, fetch the model again: {error}") from error
    return torch.float32
