"""Triton's interpreter where there is no device."""

from __future__ import annotations

import importlib.util
import inspect
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
        _patch_quickly()
    return importlib.util.find_spec("triton") is not None


def _patch_quickly() -> None:
    """The interpreter looks for the language's functions before each launch, which takes longer than most."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    found: dict[object, list[tuple[str, object]]] = {}

    def patch(package: object, builder: object, scope: interpreter._LangPatchScope) -> None:
        if package not in found:
            found[package] = [each for each in inspect.getmembers(package) if is_builtin(each[1])]
        for name, member in found[package]:
            interpreter._patch_attr(package, name, member, builder, scope)

    is_builtin = interpreter.tl.core.is_builtin
    interpreter._patch_builtin = patch
