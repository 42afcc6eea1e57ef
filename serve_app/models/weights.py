"""Checks loaded weights before they are served: none is missing, unused or not finite.

Transformers fills missing tensors with random numbers, drops tensors that it does not
know, and loads NaN like any number; each would be served silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from pathlib import Path

import torch
from torch import nn

from serve_app.models.errors import ModelLoadError


def check_names(
    module: nn.Module,
    folder: Path,
    missing: Iterable[str],
    unexpected: Iterable[str],
    progress: Callable[[str], None],
) -> None:
    """Raise ModelLoadError for a missing tensor, and for one that an existing layer ignores.

    Tensors of parts that the module does not have at all (a vision tower, layers that only
    draft) do not change its results: `progress` gets a line.
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
    changing = [name for name in ignored if _is_of(name, layers)]
    if changing:
        raise ModelLoadError(
            f"the weights in {folder} have {len(changing)} tensors that layers of {kind} do not use, such as "
            f"{changing[0]}: it would compute something else than they were trained for; check that "
            "config.json belongs to these weights (a bias or a norm that it switches off?)"
        )
    if ignored:
        progress(f"{len(ignored)} tensors are not used by {kind}, such as {ignored[0]}")


def _is_of(name: str, layers: Set[str]) -> bool:
    """Whether a tensor is a weight or bias inside one of `layers`; buffers of old releases are not."""
    if not name.endswith((".weight", ".bias")):
        return False
    parts = name.split(".")
    return any(".".join(parts[:end]) in layers for end in range(1, len(parts) - 1))


def check_finite(module: nn.Module, folder: Path) -> None:
    """Raise ModelLoadError, which names it, for a weight with a number that is not finite."""
    with torch.inference_mode():
        for name, weight in module.named_parameters():
            if weight.numel() and not torch.stack(torch.aminmax(weight)).isfinite().all():
                raise ModelLoadError(
                    f"the weights in {folder} hold numbers that are not finite in {name}: every answer would "
                    "be noise; fetch the model again, or choose another revision or dtype"
                )
