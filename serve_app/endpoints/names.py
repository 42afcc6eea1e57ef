"""Names that follow from a model's name and version. Pure string work.

The slug of an application is reversible, so no two models share one. Nothing here reads a slug back.
"""

from __future__ import annotations

from typing import Final

_APP_PREFIX: Final = "model-"  # keeps a model called "system" apart from the application of that name
_VERSION_MARK: Final = "_v_"  # cannot arise from escaping: v is no hexadecimal digit


def app_name(model: str, version: str = "") -> str:
    """The Serve application of a model, of letters, digits, `-`, `.` and `_` only.

    Any other character is `_` and the hexadecimal digits of each of its bytes.

    >>> app_name("Qwen/Qwen3-0.6B", "2")
    'model-Qwen_2fQwen3-0.6B_v_2'
    """
    return _APP_PREFIX + _escape(model) + (_VERSION_MARK + _escape(version) if version else "")


def _escape(text: str) -> str:
    return "".join(
        chr(byte) if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "-.") else f"_{byte:02x}"
        for byte in text.encode()
    )
