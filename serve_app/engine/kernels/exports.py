"""The functions of the native library, as declared in exports.h: name -> types of the result and arguments.

The build compares these types with the header, and fails if they differ (see layout.py).
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, TypeAlias

from serve_app.engine.kernels.structs import FLOAT, INT, LONG, POINTER

Signature: TypeAlias = tuple[Any, tuple[Any, ...]]

P, L, I, F = POINTER, LONG, INT, FLOAT  # noqa: E741
EXPORTS: Final[dict[str, Signature]] = {
    "pack_weight": (None, (P, P, L, L, I, I)),
    "choose_codes": (None, (P, P, P, L, L, I)),
    "pack_compact": (None, (P, P, L, L, I)),
    "compact_is_fast": (I, ()),
    "pack_int8": (None, (P, P, P, L, L, I)),
    "pack_int4": (None, (P, P, P, P, L, L, I)),
    "linear": (None, (P, P, P, L, I, I)),
    "linears": (None, (P, L, P, P, L, I)),
    "product_rank": (I, (L,)),
    "add_norm": (None, (P, P, P, F, P, P, L, L, I)),
    "rope_and_cache": (None, (P, P, P, P, P, F, P, P, L, L, L, I)),
    "write_cache": (None, (P, P, P, P, L, I)),
    "gated": (None, (P, P, L, L, I, I)),
    "gate_heads": (None, (P, P, L, L, L, I)),
    "recur": (None, (P, P, L, I)),
    "convolve": (None, (P, P, L, I)),
    "scan": (None, (P, P, L, I)),
    "run_delta": (None, (P, P, L, I)),
    "widen": (None, (P, P, L, I)),
    "highest": (None, (P, P, P, L, L, I)),
    "attend": (None, (P, P, I)),
    "run_layers": (None, (P, P, L, P, I)),
    "run_experts": (None, (P, P, P, P, I)),
    "run_mixture": (None, (P, P, P, P, L, I)),
    "time_parts": (None, (P,)),
    "tasks_taken_over": (L, ()),
    "simulate_preemption": (L, (L,)),
    "start_touching": (P, (P, P, L, L, L, P)),
    "end_touching": (None, (P, I)),
}


def declare(library: ctypes.CDLL) -> None:
    """Set the types of every function. Raises AttributeError if a function is missing in the library."""
    for name, (result, arguments) in EXPORTS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
