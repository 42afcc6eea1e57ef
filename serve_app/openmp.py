"""How long torch's threads on a CPU look for work before they sleep.

With GNU's OpenMP, which comes with torch, a thread that has finished its part spins for some milliseconds.
Our kernels have threads of their own, which cannot use the core of a thread that spins.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Final

# 50 to 150 us, by processor: if operations of torch follow closely, each finds the threads awake.
LOOKS: Final = 3_000


def look_briefly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Call it before torch is loaded: torch reads the setting then. A value set by the operator is kept."""
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", str(LOOKS))
