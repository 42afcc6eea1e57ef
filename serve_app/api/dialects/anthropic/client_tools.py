"""Anthropic's tools that the client runs: each is offered to the model as a function with the known schema.

A call is an ordinary `tool_use` block, whose input has the members that the client reads. A tool's type ends
with a date, and the members depend on that date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from serve_app.api.protocol.fields import as_integer
from serve_app.errors import InvalidField

_TYPE: Final = re.compile(r"(bash|text_editor|memory|computer)_(\d{8})")
_NAMES: Final = {"text_editor": ("str_replace_based_edit_tool", "str_replace_editor")}
_FIRST_INSERT_TEXT: Final = "20250429"  # editors before it take `new_str` to insert, and can undo
_MAX_PIXELS: Final = 32_768  # of a screen's side

_TEXT: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_LINES: Final = {
    "type": "array",
    "items": _INTEGER,
    "minItems": 2,
    "maxItems": 2,
    "description": "First and last line, from 1; -1 is the end of the file.",
}
_POINT: Final = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2, "description": "x and y."}
_EDITS: Final[Mapping[str, Any]] = {
    "path": {**_TEXT, "description": "Absolute path of the file or folder."},
    "view_range": _LINES,
    "file_text": {**_TEXT, "description": "Of create: the whole file."},
    "old_str": {**_TEXT, "description": "Of str_replace: the text to replace, which is there once."},
    "new_str": {**_TEXT, "description": "Of str_replace: the new text."},
    "insert_line": {**_INTEGER, "description": "Of insert: the line after which to insert; 0 is the start."},
}
_INSERT_TEXT: Final = {"insert_text": {**_TEXT, "description": "Of insert: the text."}}
_ACTIONS: Final = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click"),
    *("double_click", "triple_click", "left_mouse_down", "left_mouse_up", "screenshot"),
    *("cursor_position", "scroll", "hold_key", "wait", "zoom"),
)


def is_client_tool(kind: Any) -> bool:
    """Whether a tool of this type is run by the client."""
    return isinstance(kind, str) and _TYPE.fullmatch(kind) is not None


def function_of(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A tool that the client runs, as a function. Raises InvalidField."""
    match = _TYPE.fullmatch(tool["type"])
    if match is None:
        raise InvalidField(f"{where}.type", "must be the type of a tool that the client runs")
    kind, date = match.groups()
    names = _NAMES.get(kind, (kind,))
    if tool.get("name") not in names:
        raise InvalidField(f"{where}.name", f"must be {' or '.join(names)}")
    description, properties, required = _known(kind, date, tool, where)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": tool["name"], "description": description, "parameters": parameters}


def _known(
    kind: str, date: str, tool: Mapping[str, Any], where: str
) -> tuple[str, dict[str, Any], list[str]]:
    """The function's description, its properties and the names of the required properties."""
    if kind == "bash":
        command = {**_TEXT, "description": "The command to run. Required unless the shell is restarted."}
        restart = {"type": "boolean", "description": "true starts the shell anew."}
        return "Run a command in a bash shell, which stays.", {"command": command, "restart": restart}, []
    if kind == "text_editor":
        is_old = date < _FIRST_INSERT_TEXT
        commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if is_old else [])]
        properties = {"command": _one_of(commands), **_EDITS, **({} if is_old else _INSERT_TEXT)}
        return "View, create and edit files.", properties, ["command", "path"]
    if kind == "memory":
        commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
        paths = {name: {**_TEXT, "description": "Of rename."} for name in ("old_path", "new_path")}
        properties = {"command": _one_of(commands), **_EDITS, **_INSERT_TEXT, **paths}
        return (
            "Read and write notes below /memories, which outlive a conversation.",
            properties,
            ["command"],
        )
    width, height = (_pixels(tool, name, where) for name in ("display_width_px", "display_height_px"))
    return (
        f"See the screen, of {width} x {height} pixels, and use mouse and keyboard.",
        {
            "action": _one_of(_ACTIONS),
            "coordinate": _POINT,
            "start_coordinate": _POINT,
            "text": {**_TEXT, "description": "To type; of key and hold_key the keys, as xdotool names them."},
            "scroll_direction": _one_of(("up", "down", "left", "right")),
            "scroll_amount": _INTEGER,
            "duration": {"type": "number", "description": "Seconds, of hold_key and wait."},
            "region": {"type": "array", "items": _INTEGER, "minItems": 4, "maxItems": 4},
        },
        ["action"],
    )


def _one_of(words: Any) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


def _pixels(tool: Mapping[str, Any], name: str, where: str) -> int:
    number = as_integer(tool.get(name))
    if number is None or not 1 <= number <= _MAX_PIXELS:
        raise InvalidField(f"{where}.{name}", f"must be an integer from 1 to {_MAX_PIXELS}")
    return number
