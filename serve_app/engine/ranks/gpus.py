"""Which GPU each rank has: a process sees no other one, so to every rank its own is the first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import torch

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class TooFewGpus(Exception):
    """This process sees fewer GPUs than its model has ranks. The argument is their number."""


def environment_of(rank: int, ranks: int, device: str) -> Mapping[str, str]:
    """The environment of the process of a rank from 1 on. `device`: as in the settings.

    Raises TooFewGpus.
    """
    if device == "cpu" or not torch.cuda.is_available():
        return os.environ
    found = torch.cuda.device_count()
    if found < ranks:
        raise TooFewGpus(found)
    names = os.environ.get(_VISIBLE, "").split(",")
    visible = names if len(names) >= ranks else [str(number) for number in range(ranks)]
    return {**os.environ, _VISIBLE: visible[rank]}
