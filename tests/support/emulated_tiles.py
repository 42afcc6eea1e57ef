"""A plugin of pytest: the native kernels use the tile registers of AMX, in plain C++ on any x86-64 processor.

python -m pytest -p tests.support.emulated_tiles tests/unit/engine/weights
"""

from __future__ import annotations

import os
import shlex
import zlib
from pathlib import Path
from typing import Final

from serve_app.engine.kernels import build, selfcheck

HEADER: Final = Path(__file__).with_suffix(".h")
# The build knows a library by its flags: another text of the header makes another library.
FLAGS: Final = ("-include", str(HEADER), f"-DEMULATED_TILES={zlib.crc32(HEADER.read_bytes())}")


def emulate() -> None:
    """From now on in this process; before the kernels are loaded."""
    more = shlex.split(os.environ.get(build.MORE_FLAGS, ""))
    if str(HEADER) not in more:
        os.environ[build.MORE_FLAGS] = shlex.join((*more, *FLAGS))
    here = build.cpu_flags()
    setattr(selfcheck, "cpu_flags", lambda: here | {"amx_bf16"})  # noqa: B010 - else mypy sees an export


def pytest_configure() -> None:
    emulate()
