"""Triton's interpreter where there is no device; without the package its tests are left out."""

from __future__ import annotations

from tests.support.triton_interpreter import use_interpreter

collect_ignore = [] if use_interpreter() else ["test_triton.py"]
