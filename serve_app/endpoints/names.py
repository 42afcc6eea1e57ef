"""The Serve application of a model: a safe, reversible slug of its name and version. Pure string work."""

from __future__ import annotations

import re
from typing import Final

_APP_PREFIX: Final = "model-"  # keeps a model called "system" apart from the application of that name
_VERSION_MARK: Final = "_v_"  # cannot arise from escaping: v is no hexadecimal digit
_ESCAPED: Final = re.compile(r"_([0-9a-f]{2})")


def app_name(model: str, version: str = "") -> str:
    """The Serve application of a model: letters, digits, `-`, `.` and `_` only, and reversible.

    >>> app_name("Qwen/Qwen3-0.6B", "2")
    'model-Qwen_2fQwen3-0.6B_v_2'
    """
    return _APP_PREFIX + _escape(model) + (_VERSION_MARK + _escape(version) if version else "")


def parse_app_name(app: str) -> tuple[str, str]:
    """The (model, version) of an application's name. Raises ValueError for any other name."""
    model, _, version = app.removeprefix(_APP_PREFIX).partition(_VERSION_MARK)
    try:
        found = _unescape(model), _unescape(version)
    except UnicodeDecodeError:
        found = "", ""
    if not found[0] or app_name(*found) != app:
        raise ValueError(f"{app!r} is not the application of a model")
    return found


def _escape(text: str) -> str:
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "-.") else f"_{byte:02x}"
        for byte in text.encode()
    )


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1").decode()
