"""Makes the kernel refuse fsync in this process, as a broken disk does. It cannot be undone."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_SYSTEM_CALL, _FIRST_ARGUMENT = 0, 16  # offsets in `struct seccomp_data`
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_FSYNC = {"x86_64": 74, "aarch64": 82}


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("then", ctypes.c_ubyte),
        ("otherwise", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def fail(file: int | None) -> None:
    """From here on fsync of `file` (None: of any) ends in EIO, in all threads. Raises OSError."""
    refuse = [_Instruction(_RETURN, 0, 0, _ERRNO | errno.EIO)]
    if file is not None:
        refuse = [
            _Instruction(_LOAD, 0, 0, _FIRST_ARGUMENT),
            _Instruction(_JUMP_EQUAL, 0, 1, file),
            *refuse,
        ]
    code = [
        _Instruction(_LOAD, 0, 0, _SYSTEM_CALL),
        _Instruction(_JUMP_EQUAL, 0, len(refuse), _FSYNC[platform.machine()]),
        *refuse,
        _Instruction(_RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(code), (_Instruction * len(code))(*code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # seccomp(SET_MODE_FILTER, FLAG_TSYNC): all threads, the journal's among them
    number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    if libc.syscall(number, 1, 1, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
