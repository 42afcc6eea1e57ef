"""Tools of an OpenAI chat body -> what the model may call; `functions` are their older form.

Only fields of the protocol pass. A schema is data here: it is bounded, refers to nothing
outside of itself, and what it means is for the model, and for whoever forces a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from serve_app.api.dialects.chat.response_format.strict_schema import lost_keywords
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_TOOL_SCHEMA_BYTES, MAX_TOOLS
from serve_app.types import ToolChoice, ToolMode

MAX_NAME_CHARS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_WORDS: Final = {"tool_choice": ("auto", "none", "required"), "function_call": ("auto", "none")}
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How a protocol writes a tool, where protocols differ."""

    parameters: str = "parameters"  # the member with the schema, for errors; it is passed as `parameters`
    max_name_chars: int = MAX_NAME_CHARS
    max_tools: int = MAX_TOOLS
    subset: bool = False  # `strict` means OpenAI's


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of one body, and the client's word on calling them."""

    tools: tuple[dict[str, Any], ...]
    choice: ToolChoice
    legacy: bool = False  # offered as functions: an answer has one `function_call`
    ignored: tuple[str, ...] = ()  # keywords of parameters that a call must match, and may not

    @property
    def names(self) -> dict[str, str]:
        """What the client calls the fields that a replica may complain about."""
        return {"tools": "functions", "tool_choice": "function_call"} if self.legacy else {}

    @property
    def read(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model reads: none where it may call none."""
        return () if self.choice.mode is ToolMode.NONE else self.tools


def parse_offer(
    *, tools: Any, tool_choice: Any, functions: Any, function_call: Any, parallel: bool, subset: bool = False
) -> ToolOffer:
    """What a body offers in either form, but not in both; `subset`: `strict` means OpenAI's.

    Raises InvalidField or UnsupportedField.
    """
    if tools:
        for name, value in (("functions", functions), ("function_call", function_call)):
            if value:
                raise _invalid(name, "not together with tools, which replace it")
    elif functions and tool_choice is not None:
        raise _invalid("tool_choice", "goes with tools; functions have function_call")
    if functions or (function_call is not None and not tools):
        return parse_functions(functions, function_call, subset=subset)
    return parse_tools(tools, tool_choice, parallel=parallel, subset=subset)


def parse_tools(
    tools: Any, choice: Any, *, parallel: bool, max_tools: int = MAX_TOOLS, subset: bool = False
) -> ToolOffer:
    """What `tools` and `tool_choice` say. Raises InvalidField or UnsupportedField."""
    form = ToolForm(max_tools=max_tools, subset=subset)
    offered = parse_offered(tools, "tools", _function_of_tool, form)
    chosen = parse_choice(choice, "tool_choice", offered, _named_tool, parallel=parallel)
    places = [f"tools.{i}.function" for i in range(len(offered))]
    return ToolOffer(offered, chosen, ignored=not_enforced(offered, chosen, places))


def parse_functions(functions: Any, call: Any, *, subset: bool) -> ToolOffer:
    """What the deprecated `functions` and `function_call` say. Raises as `parse_tools`."""
    form = ToolForm(subset=subset)
    offered = parse_offered(functions, "functions", lambda item, where: (item, where), form)
    choice = parse_choice(call, "function_call", offered, lambda value: value, parallel=False)
    ignored = not_enforced(offered, choice, [f"functions.{i}" for i in range(len(offered))])
    return ToolOffer(offered, choice, legacy=True, ignored=ignored)


def not_enforced(
    offered: tuple[dict[str, Any], ...],
    choice: ToolChoice,
    places: Iterable[str],
    parameters: str = "parameters",
) -> tuple[str, ...]:
    """Keywords of parameters that calls are not made to match, where calls are forced at all.

    `places`: where the function of each tool lies.
    """
    if choice.mode not in (ToolMode.REQUIRED, ToolMode.NAMED):
        return ()
    found: list[str] = []
    for tool, place in zip(offered, places, strict=True):
        function = tool["function"]
        if choice.name in (None, function["name"]):
            where = f"{place}.{parameters}"
            lost = lost_keywords(function["parameters"], where, strict=False, subset=False)
            found += [f"{where}.{keyword}" for keyword in lost]
    return tuple(found)


def parse_offered(
    value: Any,
    field: str,
    function_of: Callable[[Any, str], tuple[Any, str]],
    form: ToolForm,
) -> tuple[dict[str, Any], ...]:
    """The checked tools of a list. Raises InvalidField or UnsupportedField.

    `function_of`: the function of an item, and where it lies.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid(field, f"must be a list of up to {form.max_tools} tools")
    return parse_each([(item, f"{field}.{i}") for i, item in enumerate(value)], field, function_of, form)


def parse_each(
    items: Sequence[tuple[Any, str]],
    field: str,
    function_of: Callable[[Any, str], tuple[Any, str]],
    form: ToolForm,
) -> tuple[dict[str, Any], ...]:
    """As `parse_offered`, of items each with its place."""
    if len(items) > form.max_tools:
        raise _invalid(field, f"must be a list of up to {form.max_tools} tools")
    offered: list[dict[str, Any]] = []
    names: set[str] = set()
    for item, at in items:
        function, where = function_of(item, at)
        if not isinstance(function, dict):
            raise _invalid(where, "must be an object")
        checked = _function(function, where, form)
        if checked["name"] in names:
            raise _invalid(f"{where}.name", "must differ from the names of the other tools")
        names.add(checked["name"])
        offered.append({"type": "function", "function": checked})
    return tuple(offered)


def _function_of_tool(item: Any, where: str) -> tuple[Any, str]:
    if not isinstance(item, dict):
        raise _invalid(where, "must be an object")
    kind = item.get("type")
    if not isinstance(kind, str):
        raise _invalid(f"{where}.type", 'is required and must be "function"')
    if kind != "function":
        raise UnsupportedField(f"{where}.type", "only function tools are available")
    return item.get("function"), f"{where}.function"


def _function(function: dict[str, Any], where: str, form: ToolForm) -> dict[str, Any]:
    name, description = function.get("name"), function.get("description")
    parameters, strict = function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or len(name) > form.max_name_chars or not _NAME.fullmatch(name):
        raise _invalid(f"{where}.name", f"must be 1 to {form.max_name_chars} letters, digits, _ or -")
    if description is not None and not isinstance(description, str):
        raise _invalid(f"{where}.description", "must be a string")
    if strict is not None and not isinstance(strict, bool):
        raise _invalid(f"{where}.strict", "must be true or false")
    if parameters is not None:
        _check_schema(parameters, f"{where}.{form.parameters}")
        if strict:
            lost_keywords(parameters, f"{where}.{form.parameters}", strict=True, subset=form.subset)
    return {
        "name": name,
        **({} if description is None else {"description": description}),
        "parameters": _NO_PARAMETERS if parameters is None else parameters,
        **({"strict": True} if strict else {}),
    }


def _check_schema(schema: Any, where: str) -> None:
    if not isinstance(schema, dict):
        raise _invalid(where, "must be a JSON Schema object")
    if schema.get("type", "object") != "object":
        raise _invalid(where, "must describe an object: arguments are one")
    if len(msgspec.json.encode(schema)) > MAX_TOOL_SCHEMA_BYTES:
        raise _invalid(where, f"must be at most {MAX_TOOL_SCHEMA_BYTES} bytes of JSON")
    pending: list[Any] = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            pending += item.values()
            # A property may have such a name; its value is then a schema, not a string.
            if any(isinstance(item.get(key), str) and item[key][:1] != "#" for key in _REFERENCES):
                raise _invalid(where, "a reference must point into the same schema (#...)")


def parse_choice(
    value: Any,
    field: str,
    offered: tuple[dict[str, Any], ...],
    named: Callable[[dict[str, Any]], Any],
    *,
    parallel: bool,
) -> ToolChoice:
    """A word, or the tool that `named` finds in an object. Raises InvalidField."""
    if value is None:
        return ToolChoice(parallel=parallel)
    words = _WORDS[field]
    if isinstance(value, str) and value in words:
        if value == ToolMode.REQUIRED and not offered:
            raise _invalid(field, "required needs tools")
        return ToolChoice(mode=ToolMode(value), parallel=parallel)
    if not isinstance(value, dict):
        raise _invalid(field, f"must be {', '.join(words)} or an object that names a tool")
    function = named(value)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in {tool["function"]["name"] for tool in offered}:
        raise _invalid(field, "must name one of the tools of this request")
    return ToolChoice(mode=ToolMode.NAMED, name=name, parallel=False)


def _named_tool(value: dict[str, Any]) -> Any:
    if value.get("type") != "function":
        raise UnsupportedField("tool_choice.type", "only function is available")
    return value.get("function")


def _invalid(where: str, what: str) -> InvalidField:
    return InvalidField(where, what)
