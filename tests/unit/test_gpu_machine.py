"""The tests of a GPU run where only the packages are that the Makefile names."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
RULE: Final = re.search(
    r"^# On a machine with CUDA.*?^# (torch, .*?) already runs it.*?"
    r"^test-gpu:.*?\$\(PYTEST\) (.*?)\$\(GPU_TESTS\)",
    (ROOT / "Makefile").read_text("utf-8"),
    re.M | re.S,
)

# Collects the tests where no other package can be imported.
COLLECT: Final = """
import re, sys
from importlib import metadata
import pytest

def named(name): return re.sub("[-_.]+", "-", name).lower()

def closure(names):
    found, left = set(), list(names)
    while left:
        name = named(left.pop())
        if name in found: continue
        found.add(name)
        try: needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError: continue
        left += [re.match(r"[\\w.-]+", need)[0] for need in needs if "extra ==" not in need]
    return found

allowed = closure(sys.argv[1].split())
for module, owners in metadata.packages_distributions().items():
    if not allowed & {named(each) for each in owners} and module not in ("serve_app", "tests"):
        sys.modules[module] = None
sys.exit(pytest.main(["--collect-only", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.full
def test_they_need_no_other_package() -> None:
    assert RULE is not None
    packages, flags = re.findall(r"[\w-]+", RULE[1].replace(" and ", " ")), shlex.split(RULE[2])
    assert len(packages) > 4
    assert flags
    # Those beside `tests/gpu` import Triton, which is not in every environment of `make test`.
    command = [sys.executable, "-c", COLLECT, " ".join(packages), *flags, "tests/gpu"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert {"test_cuda_attention.py", "test_cuda_memory.py"} <= set(re.findall(r"test_\w+\.py", done.stdout))
