"""The fields `tools` and `tool_choice` -> the tools that the model may call, and whether it must call one."""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.anthropic import client_tools
from serve_app.api.dialects.chat.tools import ToolForm, ToolOffer, not_enforced, parse_offered
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_AGENT_TOOLS
from serve_app.types import ToolChoice, ToolMode

MAX_NAME_CHARS: Final = 128
SCHEMA: Final = "input_schema"
_FORM: Final = ToolForm(parameters=SCHEMA, max_name_chars=MAX_NAME_CHARS, max_tools=MAX_AGENT_TOOLS)
_FIELD: Final = "tool_choice"
_MODES: Final = {
    "auto": ToolMode.AUTO,
    "any": ToolMode.REQUIRED,
    "tool": ToolMode.NAMED,
    "none": ToolMode.NONE,
}
_ONE_CALL: Final = "disable_parallel_tool_use"


def parse_tools(tools: Any, choice: Any) -> ToolOffer:
    """The tools that the two fields offer. Raises InvalidField or UnsupportedField."""
    offered = parse_offered(tools, "tools", _function_of, _FORM)
    chosen = _choice(choice, {tool["function"]["name"] for tool in offered})
    places = [f"tools.{i}" for i in range(len(offered))]
    return ToolOffer(offered, chosen, ignored=not_enforced(offered, chosen, places, SCHEMA))


def _function_of(item: Any, where: str) -> tuple[Any, str]:
    """The function of a tool, with members named as in templates. Raises InvalidField or UnsupportedField."""
    if not isinstance(item, dict):
        return item, where
    kind = item.get("type")
    if kind is not None and not isinstance(kind, str):
        raise InvalidField(f"{where}.type", "must be a string")
    if client_tools.is_client_tool(kind):
        return client_tools.function_of(item, where), where
    if kind not in (None, "custom"):
        raise UnsupportedField(
            f"{where}.type", "only custom tools and those that the client runs are available"
        )
    if item.get(SCHEMA) is None:
        raise InvalidField(f"{where}.{SCHEMA}", "is required")
    members = {name: item.get(name) for name in ("name", "description", "strict")}
    return {**members, "parameters": item[SCHEMA]}, where


def _choice(value: Any, names: set[str]) -> ToolChoice:
    """Raises InvalidField."""
    if value is None:
        return ToolChoice()
    if not isinstance(value, dict):
        raise InvalidField(_FIELD, "must be an object")
    kind, one_call = value.get("type"), value.get(_ONE_CALL)
    if not isinstance(kind, str) or kind not in _MODES:
        raise InvalidField(f"{_FIELD}.type", f"must be one of: {', '.join(_MODES)}")
    if one_call is not None and not isinstance(one_call, bool):
        raise InvalidField(f"{_FIELD}.{_ONE_CALL}", "must be true or false")
    mode, name = _MODES[kind], value.get("name")
    if mode is ToolMode.NAMED:
        if not isinstance(name, str) or name not in names:
            raise InvalidField(f"{_FIELD}.name", "must name one of the tools of this request")
        return ToolChoice(mode=mode, name=name, parallel=False)
    if mode is ToolMode.REQUIRED and not names:
        raise InvalidField(_FIELD, "any needs tools")
    return ToolChoice(mode=mode, parallel=not one_call)
