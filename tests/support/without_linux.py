"""Takes away from this process what only Linux has, as far as the server's own code can tell.

Gone for code of serve_app: functions and constants of the standard library that other systems lack,
files below /proc and /sys, and functions of the C library. Libraries keep what they use
themselves: they have their own ways on other systems.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import mmap
import os
import pathlib
import resource
import select
import socket
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest

OURS: Final = "serve_app"
GONE: Final[dict[ModuleType, tuple[str, ...]]] = {
    os: (
        *("sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "pidfd_open"),
        *("posix_fadvise", "posix_fallocate", "sendfile", "splice", "getrandom", "O_TMPFILE"),
    ),
    mmap: ("MADV_HUGEPAGE", "MAP_POPULATE"),
    resource: ("prlimit",),
    select: ("epoll",),
    socket: ("SO_PEERCRED", "TCP_USER_TIMEOUT"),
}


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Until `patch` is undone."""
    for module, names in GONE.items():
        for name in names:
            patch.delattr(module, name, raising=False)
    patch.setattr(builtins, "open", _without_files(builtins.open))
    patch.setattr(io, "open", _without_files(io.open))
    right = ctypes.CDLL

    def library(name: str | None, *args: Any, **options: Any) -> Any:
        return SimpleNamespace() if name is None else right(name, *args, **options)

    patch.setattr(ctypes, "CDLL", library)


def _without_files(right: Callable[..., Any]) -> Callable[..., Any]:
    def opened(file: Any, *args: Any, **options: Any) -> Any:
        if str(file).startswith(("/proc/", "/sys/")) and _asked_by_us():
            raise FileNotFoundError(f"no {file} here")
        return right(file, *args, **options)

    return opened


def _asked_by_us() -> bool:
    """Whether the nearest caller outside the standard library's file modules is the server's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in (pathlib.__name__, io.__name__, __name__):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(OURS)
