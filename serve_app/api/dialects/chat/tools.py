"""Tools of an OpenAI chat body -> the tools that the model may call; `functions` are their older form.

Fields outside the protocol are dropped. A schema is only data here: its size is
bounded, it refers to nothing outside of itself, and only the model and forced calls interpret it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from serve_app.api.dialects.chat import custom_tools
from serve_app.api.dialects.chat.custom_tools import CUSTOM
from serve_app.api.dialects.chat.response_format.strict_schema import lost_keywords
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.json_schema import References, UnusableSchema
from serve_app.json_schema.numerals import dumps
from serve_app.limits import MAX_TOOL_SCHEMA_BYTES, MAX_TOOLS
from serve_app.types import ToolChoice, ToolMode

FUNCTION: Final = "function"
ALLOWED: Final = "allowed_tools"
MAX_NAME_CHARS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_NO_PARAMETERS: Final = {"type": "object", "properties": {}}
_WORDS: Final = {"tool_choice": ("auto", "none", "required"), "function_call": ("auto", "none")}


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How a protocol writes a tool, as far as protocols differ."""

    parameters: str = "parameters"  # the member with the schema, for errors; it is passed as `parameters`
    max_name_chars: int = MAX_NAME_CHARS
    max_tools: int = MAX_TOOLS
    subset: bool = False  # `strict` means OpenAI's


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools of one body, and whether the client wants them called."""

    tools: tuple[dict[str, Any], ...]
    choice: ToolChoice
    legacy: bool = False  # offered as functions: an answer has one `function_call`
    customs: frozenset[str] = frozenset()  # those that are called with a text
    ignored: tuple[str, ...] = ()  # keywords of parameters, and formats, that a call must match, and may not

    @property
    def names(self) -> dict[str, str]:
        """The client's names for the fields that a replica may complain about."""
        return {"tools": "functions", "tool_choice": "function_call"} if self.legacy else {}

    @property
    def read(self) -> tuple[dict[str, Any], ...]:
        """The tools that the model reads; empty if it may call no tool."""
        return () if self.choice.mode is ToolMode.NONE else self.tools


def parse_offer(
    *,
    tools: Any,
    tool_choice: Any,
    functions: Any,
    function_call: Any,
    parallel: bool,
    subset: bool = False,
    is_openai: bool = False,
) -> ToolOffer:
    """The tools that a body offers in one of two forms. `subset` and `is_openai`: see `parse_tools`.

    Raises InvalidField or UnsupportedField.
    """
    if tools:
        for name, value in (("functions", functions), ("function_call", function_call)):
            if value:
                raise InvalidField(name, "not together with tools, which replace it")
    elif functions and tool_choice is not None:
        raise InvalidField("tool_choice", "goes with tools; functions have function_call")
    if functions or (function_call is not None and not tools):
        return parse_functions(functions, function_call, subset=subset)
    return parse_tools(tools, tool_choice, parallel=parallel, subset=subset, is_openai=is_openai)


def parse_tools(
    tools: Any,
    choice: Any,
    *,
    parallel: bool,
    max_tools: int = MAX_TOOLS,
    subset: bool = False,
    is_openai: bool = False,
) -> ToolOffer:
    """The offer made by `tools` and `tool_choice`. Raises InvalidField or UnsupportedField.

    `subset`: `strict` means OpenAI's subset. `is_openai`: accept custom tools and allowed tools.
    """
    form = ToolForm(max_tools=max_tools, subset=subset)
    kinds = (FUNCTION, CUSTOM) if is_openai else (FUNCTION,)
    listed = parse_offered(tools, "tools", partial(_function_of_tool, kinds), form)
    given = list(tools or ())
    places = [f"tools.{i}.{tool['type']}" for i, tool in enumerate(given)]
    customs = [
        (tool[CUSTOM], place) for tool, place in zip(given, places, strict=True) if tool["type"] == CUSTOM
    ]
    listed = offered = custom_tools.with_grammars(listed, customs)
    if is_openai and isinstance(choice, dict) and choice.get("type") == ALLOWED:
        among = choice.get(ALLOWED)
        offered, choice = allowed_of(among, f"tool_choice.{ALLOWED}", listed, partial(_named_in, kinds))
    chosen = parse_choice(choice, "tool_choice", offered, partial(_named_tool, kinds), parallel=parallel)
    formats = custom_tools.ignored_formats(customs, chosen)
    return ToolOffer(
        offered,
        chosen,
        customs=frozenset(tool["name"] for tool, _ in customs),
        ignored=(*formats, *not_enforced(listed, chosen, places)),
    )


def allowed_of(
    value: Any, field: str, offered: tuple[dict[str, Any], ...], named: Callable[[dict[str, Any]], Any]
) -> tuple[tuple[dict[str, Any], ...], str]:
    """The offered tools that may be called, and the mode: `auto`, or `required` if one must be called.

    `named`: gets, from an item, the object whose `name` is the tool's. Raises InvalidField.
    """
    if not isinstance(value, dict):
        raise InvalidField(field, "is required and must be an object")
    mode, listed = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidField(f"{field}.mode", "must be auto or required")
    if not isinstance(listed, list) or not listed:
        raise InvalidField(f"{field}.tools", "must be a list of at least one tool")
    found = [named(each) for each in listed if isinstance(each, dict)]
    given = [each.get("name") for each in found if isinstance(each, dict)]
    names = {name for name in given if isinstance(name, str)}
    known = {tool["function"]["name"] for tool in offered}
    if len(names) < len(listed) or not names <= known:
        raise InvalidField(f"{field}.tools", "must name tools of this request, each once")
    return tuple(tool for tool in offered if tool["function"]["name"] in names), str(mode)


def parse_functions(functions: Any, call: Any, *, subset: bool) -> ToolOffer:
    """The offer made by the deprecated `functions` and `function_call`. Same errors as `parse_tools`."""
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
    """The keywords in parameters' schemas that are not enforced although calls are forced.

    `places`: the place of each tool's function in the body.
    """
    if choice.mode not in (ToolMode.REQUIRED, ToolMode.NAMED):
        return ()
    found: list[str] = []
    for tool, place in zip(offered, places, strict=True):
        function = tool["function"]
        if choice.name in (None, function["name"]):
            where = f"{place}.{parameters}"
            with _naming(function["name"]):
                lost = lost_keywords(function["parameters"], where, strict=False, subset=False)
            found += [f"{where}.{keyword}" for keyword in lost]
    return tuple(found)


def parse_offered(
    value: Any,
    field: str,
    function_of: Callable[[Any, str], tuple[Any, str]],
    form: ToolForm,
) -> tuple[dict[str, Any], ...]:
    """The tools of a list, checked. Raises InvalidField or UnsupportedField.

    `function_of`: finds the function of an item, and its place.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidField(field, f"must be a list of up to {form.max_tools} tools")
    return parse_each([(item, f"{field}.{i}") for i, item in enumerate(value)], field, function_of, form)


def parse_each(
    items: Sequence[tuple[Any, str]],
    field: str,
    function_of: Callable[[Any, str], tuple[Any, str]],
    form: ToolForm,
) -> tuple[dict[str, Any], ...]:
    """As `parse_offered`, but each item comes with its place."""
    if len(items) > form.max_tools:
        raise InvalidField(field, f"must be a list of up to {form.max_tools} tools")
    offered: list[dict[str, Any]] = []
    names: set[str] = set()
    for item, at in items:
        function, where = function_of(item, at)
        if not isinstance(function, dict):
            raise InvalidField(where, "must be an object")
        checked = _function(function, where, form)
        if checked["name"] in names:
            raise InvalidField(f"{where}.name", "must differ from the names of the other tools")
        names.add(checked["name"])
        offered.append({"type": "function", "function": checked})
    return tuple(offered)


def _function_of_tool(kinds: Sequence[str], item: Any, where: str) -> tuple[Any, str]:
    if not isinstance(item, dict):
        raise InvalidField(where, "must be an object")
    kind = item.get("type")
    if not isinstance(kind, str):
        raise InvalidField(f"{where}.type", f"is required and must be {' or '.join(map(_quoted, kinds))}")
    if kind not in kinds:
        raise UnsupportedField(f"{where}.type", f"only {' and '.join(kinds)} tools are available")
    tool, at = item.get(kind), f"{where}.{kind}"
    return (custom_tools.function_of(tool, at) if kind == CUSTOM and isinstance(tool, dict) else tool), at


def _function(function: dict[str, Any], where: str, form: ToolForm) -> dict[str, Any]:
    name, description = function.get("name"), function.get("description")
    parameters, strict = function.get("parameters"), function.get("strict")
    if not isinstance(name, str) or len(name) > form.max_name_chars or not _NAME.fullmatch(name):
        raise InvalidField(f"{where}.name", f"must be 1 to {form.max_name_chars} letters, digits, _ or -")
    if description is not None and not isinstance(description, str):
        raise InvalidField(f"{where}.description", "must be a string")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidField(f"{where}.strict", "must be true or false")
    if parameters is not None:
        with _naming(name):
            _check_schema(parameters, f"{where}.{form.parameters}")
            if strict:
                lost_keywords(parameters, f"{where}.{form.parameters}", strict=True, subset=form.subset)
    return {
        "name": name,
        **({} if description is None else {"description": description}),
        "parameters": _NO_PARAMETERS if parameters is None else parameters,
        **({"strict": True} if strict else {}),
    }


@contextmanager
def _naming(tool: str) -> Iterator[None]:
    """Add the tool's name to errors about parameters, as clients rarely know the tool's place in the list."""
    try:
        yield
    except InvalidField as error:
        raise InvalidField(error.param, f'tool "{tool}": {error.reason}') from error


def _check_schema(schema: Any, where: str) -> None:
    if not isinstance(schema, dict):
        raise InvalidField(where, "must be a JSON Schema object")
    if schema.get("type", "object") != "object":
        raise InvalidField(where, "must describe an object: arguments are one")
    if len(dumps(schema).encode()) > MAX_TOOL_SCHEMA_BYTES:
        raise InvalidField(where, f"must be at most {MAX_TOOL_SCHEMA_BYTES} bytes of JSON")
    try:
        References(schema).check()
    except UnusableSchema as error:
        raise InvalidField(where, str(error)) from None


def parse_choice(
    value: Any,
    field: str,
    offered: tuple[dict[str, Any], ...],
    named: Callable[[dict[str, Any]], Any],
    *,
    parallel: bool,
    ignored: Sequence[str] = (),
) -> ToolChoice:
    """The choice: a word, or an object in which `named` finds the tool. Raises InvalidField.

    `ignored`: the places and types of the tools that are not offered to the model.
    """
    if value is None:
        return ToolChoice(parallel=parallel)
    words = _WORDS[field]
    if isinstance(value, str) and value in words:
        if value == ToolMode.REQUIRED and not offered:
            hint = f" that can be called here; ignored: {', '.join(ignored)}" if ignored else ""
            raise InvalidField(field, f"required needs tools{hint}")
        return ToolChoice(mode=ToolMode(value), parallel=parallel)
    if not isinstance(value, dict):
        raise InvalidField(field, f"must be {', '.join(words)} or an object that names a tool")
    function = named(value)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in {tool["function"]["name"] for tool in offered}:
        raise InvalidField(field, "must name one of the tools of this request")
    return ToolChoice(mode=ToolMode.NAMED, name=name, parallel=False)


def _named_tool(kinds: Sequence[str], value: dict[str, Any]) -> Any:
    kind = str(value.get("type"))
    if kind not in kinds:
        available = f"{', '.join(kinds)} and {ALLOWED} are" if len(kinds) > 1 else f"{kinds[0]} is"
        raise UnsupportedField("tool_choice.type", f"only {available} available")
    return value.get(kind)


def _named_in(kinds: Sequence[str], value: dict[str, Any]) -> Any:
    """The object in an allowed tool whose `name` is the tool's; None: the item is not a tool."""
    kind = str(value.get("type"))
    return value.get(kind) if kind in kinds else None


def _quoted(word: str) -> str:
    return f'"{word}"'
