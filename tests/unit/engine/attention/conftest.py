"""Triton's interpreter where there is no device; without the package its tests are left out."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import torch

APART = Path(__file__).parents[4] / ".venv-triton"  # where `make test` installs it

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
    if APART.is_dir():
        sys.path.append(str(APART))
collect_ignore = [] if importlib.util.find_spec("triton") else ["test_triton.py"]
