"""Triton's interpreter where there is no device."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

# Marks of what takes moments on a device, and tens of seconds in the interpreter.
LONG: list[pytest.MarkDecorator] = [] if torch.cuda.is_available() else [pytest.mark.full]
TestT = TypeVar("TestT", bound=Callable[..., None])


def long(test: TestT) -> TestT:
    """Mark a whole test so."""
    for mark in LONG:
        test = mark(test)
    return test


APART = Path(__file__).parents[2] / ".venv-triton"  # where `make test` installs it


def use_interpreter() -> bool:
    """Have kernels that are defined from now on run somewhere; False where there is no Triton."""
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
        if APART.is_dir() and str(APART) not in sys.path:
            sys.path.insert(0, str(APART))  # numpy 2.4 breaks the interpreter of torch 2.11's own, 3.6
    return importlib.util.find_spec("triton") is not None
