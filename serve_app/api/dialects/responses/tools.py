"""The tools of a response, written without a nested `function`, and whether the client wants them called."""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.chat import custom_tools
from serve_app.api.dialects.chat.custom_tools import CUSTOM
from serve_app.api.dialects.chat.tools import (
    ALLOWED,
    ToolForm,
    ToolOffer,
    allowed_of,
    not_enforced,
    parse_choice,
    parse_each,
)
from serve_app.api.dialects.responses import client_tools
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_TOOLS

NAMESPACE: Final = "namespace"
# Tools that the server would run. Agents offer them unasked, and a model does not have to call them.
UNASKED: Final = ("web_search", "web_search_preview", "image_generation", "tool_search")
_FIELD: Final = "tool_choice"
_MEMBERS: Final = ("name", "description", "parameters", "strict")

_Placed = tuple[Any, str]  # an item, and where it lies


def parse_tools(
    tools: Any, choice: Any, *, parallel: bool, subset: bool = True, nested: bool = False
) -> ToolOffer:
    """The offer made by `tools` and `tool_choice`. Raises InvalidField or UnsupportedField.

    `subset`: whether `strict` means OpenAI's subset. `nested`: whether, as in chats, the members of tools and
    of a named choice may also lie below `function`, and there are no custom tools.
    """
    listed_as_chats = isinstance(tools, list) and any(isinstance(t, dict) and "function" in t for t in tools)
    is_nested = nested and listed_as_chats
    kinds = ("function",) if nested else ("function", CUSTOM, *client_tools.TOOLS)

    def function_of(item: Any, where: str) -> _Placed:
        if not isinstance(item, dict):
            return item, where
        kind = item.get("type")
        if not isinstance(kind, str):
            raise InvalidField(f"{where}.type", "is required and must be a string")
        if kind == CUSTOM and kind in kinds:
            return custom_tools.function_of(item, where), where
        if kind in kinds and kind in client_tools.TOOLS:
            return client_tools.function_of(item, where), where
        if kind != "function":
            custom = "" if nested else f", custom, {', '.join(client_tools.TOOLS)}"
            raise UnsupportedField(
                f"{where}.type", f"only function{custom} tools, and namespaces of them, are available"
            )
        if is_nested and "function" in item:
            return item["function"], f"{where}.function"
        return item, where

    def named(value: dict[str, Any]) -> Any:
        if value.get("type") not in kinds:
            available = f"{', '.join(kinds)} and {ALLOWED}"
            raise UnsupportedField(f"{_FIELD}.type", f"only {available} are available")
        if value["type"] in client_tools.TOOLS:
            return {"name": value["type"]}
        return value["function"] if nested and "function" in value else value

    items, unasked = _flat(tools)
    listed = parse_each(items, "tools", function_of, ToolForm(subset=subset))
    customs = [(item, where) for item, where in items if item["type"] == CUSTOM]
    listed = offered = custom_tools.with_grammars(listed, customs)
    if isinstance(choice, dict) and choice.get("type") == ALLOWED:
        offered, choice = allowed_of(choice, _FIELD, listed, _named_in)
    chosen = parse_choice(
        choice,
        _FIELD,
        offered,
        named,
        parallel=parallel,
        ignored=[f"{place} ({kind})" for place, kind in unasked.items()],
    )
    formats = custom_tools.ignored_formats(customs, chosen)
    places = [function_of(item, where)[1] for item, where in items]
    return ToolOffer(offered, chosen, ignored=(*unasked, *formats, *not_enforced(listed, chosen, places)))


def shown(tools: Any) -> list[dict[str, Any]]:
    """Checked tools as a response lists them."""
    return [_shown(tool) for tool in tools or ()]


def namespaces(tools: Any) -> dict[str, str]:
    """The namespace of each tool that is in one, by the tool's name. `tools` are checked."""
    return {
        tool["name"]: group["name"]
        for group in tools or ()
        if group.get("type") == NAMESPACE
        for tool in group["tools"]
    }


def customs(tools: Any) -> frozenset[str]:
    """The names of the custom tools. `tools` are checked."""
    return frozenset(item["name"] for item, _ in _flat(tools)[0] if item.get("type") == CUSTOM)


def _flat(tools: Any) -> tuple[list[_Placed], dict[str, str]]:
    """The tools, including those in namespaces, and the places and types of tools that have no effect.

    Raises InvalidField.
    """
    if tools is None:
        return [], {}
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidField("tools", f"must be a list of up to {MAX_TOOLS} tools")
    items: list[_Placed] = []
    unasked: dict[str, str] = {}
    for i, tool in enumerate(tools):
        where = f"tools.{i}"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == NAMESPACE:
            items += _grouped(tool, where)
        elif isinstance(kind, str) and kind in UNASKED:
            unasked[where] = kind
        else:
            items.append((tool, where))
    return items, unasked


def _grouped(group: dict[str, Any], where: str) -> list[_Placed]:
    name, tools = group.get("name"), group.get("tools")
    if not isinstance(name, str) or not name:
        raise InvalidField(f"{where}.name", "is required and must be a string")
    if not isinstance(tools, list):
        raise InvalidField(f"{where}.tools", "is required and must be a list of tools")
    return [(tool, f"{where}.tools.{i}") for i, tool in enumerate(tools)]


def _named_in(tool: dict[str, Any]) -> Any:
    """The object with the allowed tool's `name`."""
    return {"name": tool["type"]} if tool.get("type") in client_tools.TOOLS else tool


def client_run(tools: Any) -> frozenset[str]:
    """The names of the tools whose calls are items of their own type. `tools` are checked."""
    return frozenset(item["type"] for item, _ in _flat(tools)[0] if item.get("type") in client_tools.TOOLS)


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] != "function":
        return tool
    flat = tool.get("function", tool)
    return {"type": "function", **{name: flat.get(name) for name in _MEMBERS}}
