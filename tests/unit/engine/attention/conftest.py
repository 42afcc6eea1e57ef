"""Triton's interpreter where there is no device; without the package its tests are left out."""

from __future__ import annotations

import importlib.util
import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
collect_ignore = [] if importlib.util.find_spec("triton") else ["test_triton.py"]
