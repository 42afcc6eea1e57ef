"""msgpack extensions for the numbers in a client's JSON for which msgpack has no type.

These are integers of more than 64 bits, and decimals that a float cannot hold. Both travel as text.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

import msgspec

from serve_app.types import Numeral

_INTEGER: Final = 1
_NUMERAL: Final = 2
_LEAST, _MOST = -(2**63), 2**64 - 1


class Encoder:
    """Encodes and decodes contract types as msgpack, with numbers of any size."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder(enc_hook=_extended).encode

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except OverflowError:  # of an integer, for which there is no hook
            return self._encode(_with_long_integers(value))


def number_of(code: int, data: memoryview) -> float:
    """The number that a msgpack extension encodes. Raises ValueError."""
    text = bytes(data).decode("ascii")
    if code == _INTEGER:
        return int(text)
    if code == _NUMERAL:
        return Numeral(text)
    raise ValueError("there is no such number")


def _extended(value: Any) -> msgspec.msgpack.Ext:
    if isinstance(value, Numeral):
        return msgspec.msgpack.Ext(_NUMERAL, value.text.encode())
    raise TypeError(f"no message carries a {type(value).__name__}")


def _with_long_integers(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, Enum) and not _LEAST <= value <= _MOST:
        return msgspec.msgpack.Ext(_INTEGER, str(value).encode())
    if isinstance(value, dict):
        return {name: _with_long_integers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_long_integers(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _with_long_integers(getattr(value, each.name)) for each in fields(value)}
    return value
