"""The tools of a response, whose members lie flat, and the client's word on calling them."""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.chat.tools import (
    ToolForm,
    ToolOffer,
    not_enforced,
    parse_choice,
    parse_offered,
)
from serve_app.errors import InvalidField, UnsupportedField

ALLOWED: Final = "allowed_tools"
_FIELD: Final = "tool_choice"


def parse_tools(
    tools: Any, choice: Any, *, parallel: bool, subset: bool = True, nested: bool = False
) -> ToolOffer:
    """What `tools` and `tool_choice` say. Raises InvalidField or UnsupportedField.

    `subset`: `strict` means OpenAI's. `nested`: a tool, and the one that must be called, may also have its
    members below `function`, as in chats.
    """
    listed_as_chats = isinstance(tools, list) and any(isinstance(t, dict) and "function" in t for t in tools)
    is_nested = nested and listed_as_chats

    def function_of(item: Any, where: str) -> tuple[Any, str]:
        if isinstance(item, dict) and item.get("type") != "function":
            if not isinstance(item.get("type"), str):
                raise InvalidField(f"{where}.type", 'is required and must be "function"')
            raise UnsupportedField(f"{where}.type", "only function tools are available")
        if is_nested and isinstance(item, dict) and "function" in item:
            return item["function"], f"{where}.function"
        return item, where

    def named(value: dict[str, Any]) -> Any:
        if value.get("type") != "function":
            raise UnsupportedField(f"{_FIELD}.type", f"only function and {ALLOWED} are available")
        return value["function"] if nested and "function" in value else value

    listed = offered = parse_offered(tools, "tools", function_of, ToolForm(subset=subset))
    if isinstance(choice, dict) and choice.get("type") == ALLOWED:
        offered, choice = _allowed(choice, listed)
    chosen = parse_choice(choice, _FIELD, offered, named, parallel=parallel)
    place = "tools.{}.function" if is_nested else "tools.{}"
    return ToolOffer(offered, chosen, ignored=not_enforced(listed, chosen, place))


def shown(tools: Any) -> list[dict[str, Any]]:
    """Checked tools as a response tells them."""
    members = ("name", "description", "parameters", "strict")
    flat = [tool.get("function", tool) for tool in tools or ()]
    return [{"type": "function", **{name: tool.get(name) for name in members}} for tool in flat]


def _allowed(
    value: dict[str, Any], offered: tuple[dict[str, Any], ...]
) -> tuple[tuple[dict[str, Any], ...], str]:
    """Those of the tools that may be called, and whether one must be."""
    mode, listed = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidField(f"{_FIELD}.mode", "must be auto or required")
    if not isinstance(listed, list) or not listed:
        raise InvalidField(f"{_FIELD}.tools", "must be a list of at least one tool")
    given = [each.get("name") for each in listed if isinstance(each, dict)]
    names = {name for name in given if isinstance(name, str)}
    known = {tool["function"]["name"] for tool in offered}
    if len(names) < len(listed) or not names <= known:
        raise InvalidField(f"{_FIELD}.tools", "must name tools of this request, each once")
    return tuple(tool for tool in offered if tool["function"]["name"] in names), str(mode)
