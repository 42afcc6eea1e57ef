"""Triton's interpreter where there is no device; without the package these tests are left out."""

from __future__ import annotations

from tests.support.triton_interpreter import use_interpreter

collect_ignore_glob = [] if use_interpreter() else ["test_*.py"]
