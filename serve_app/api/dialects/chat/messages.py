"""Chat messages of the OpenAI protocol -> plain mappings for a chat template.

Only fields of the protocol pass; everything else a client puts in a message is dropped,
so that it never reaches a template.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pydantic_core

from serve_app.api.dialects.chat.custom_tools import CUSTOM, INPUT
from serve_app.api.edge.body import check_finite
from serve_app.errors import InvalidBody, InvalidField, UnsupportedField
from serve_app.limits import MAX_CONTENT_PARTS, MAX_MESSAGES

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
MAX_NAME_CHARS: Final = 256  # of a function, a call id or a participant
MAX_TOOL_CALLS: Final = 128  # in one message
_OF_ALL: Final = ("role", "content", "tool_calls", "tool_call_id")  # keys of every protocol
_REASONING: Final = ("reasoning_content", "reasoning")


def parse_messages(value: Any, *, customs: bool = False) -> tuple[dict[str, Any], ...]:
    """Checked and flattened messages. `customs`: whether earlier calls may be of custom tools.

    Raises InvalidField or UnsupportedField.
    """
    if value is None:
        raise InvalidField("messages", "is required")
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise InvalidField("messages", f"must be a list of 1 to {MAX_MESSAGES} messages")
    return tuple(_message(item, f"messages.{i}", customs=customs) for i, item in enumerate(value))


def known(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the members that exist only in OpenAI's protocol; other protocols ignore these.

    A name and thoughts are kept if they have the usual form, since templates may use them.
    """
    kept: dict[str, Any] = {key: message[key] for key in _OF_ALL if key in message}
    if isinstance(name := message.get("name"), str) and 1 <= len(name) <= MAX_NAME_CHARS:
        kept["name"] = name
    if isinstance(thoughts := message.get("reasoning_content"), str):
        kept["reasoning_content"] = thoughts
    return kept


def _message(value: Any, where: str, *, customs: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidField(where, "must be an object")
    role = value.get("role")
    if role not in ROLES:
        raise InvalidField(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    if role == "function":
        return _function_result(value, where)
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    calls = value.get("tool_calls") if role == "assistant" else None
    legacy_call = value.get("function_call") if role == "assistant" else None
    content = parse_content(value.get("content"), f"{where}.content")
    if content is None and role != "assistant":
        raise InvalidField(f"{where}.content", "is required")
    # Templates concatenate contents, but an assistant's turn may consist only of tool calls.
    message["content"] = content or ""
    if value.get("name") is not None:
        message["name"] = parse_name(value["name"], f"{where}.name")
    if role == "assistant":
        for field in _REASONING:
            if value.get(field) is not None:
                message["reasoning_content"] = parse_string(value[field], f"{where}.{field}")
                break
        if calls:
            message["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls", customs=customs)
        elif legacy_call is not None:
            message["tool_calls"] = [_legacy_call(legacy_call, f"{where}.function_call")]
        elif content is None:
            raise InvalidField(f"{where}.content", "is required without tool_calls")
    if role == "tool":
        if value.get("tool_call_id") is None:
            raise InvalidField(f"{where}.tool_call_id", "is required")
        message["tool_call_id"] = parse_name(value["tool_call_id"], f"{where}.tool_call_id")
    return message


def _function_result(value: dict[str, Any], where: str) -> dict[str, Any]:
    """A message of the deprecated role `function`, as a message of the role `tool`."""
    name = parse_name(value.get("name"), f"{where}.name")
    content = parse_content(value.get("content"), f"{where}.content") or ""
    return {"role": "tool", "content": content, "name": name, "tool_call_id": _legacy_id(name)}


def _legacy_call(value: Any, where: str) -> dict[str, Any]:
    call = parse_call(value, where)
    return {**call, "id": _legacy_id(call["function"]["name"])}


def _legacy_id(name: str) -> str:
    """Deprecated function calls have no ids, so the function's name pairs a call with its answer."""
    return f"function_{name}"


def parse_content(value: Any, where: str, kinds: Collection[str] = ("text",)) -> str | None:
    """A string, or text parts joined by line breaks; `kinds`: the types that count as text. None for null.

    Raises InvalidField or UnsupportedField.
    """
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > MAX_CONTENT_PARTS:
        raise InvalidField(where, f"must be a string or a list of up to {MAX_CONTENT_PARTS} text parts")
    texts: list[str] = []
    for i, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise InvalidField(f"{where}.{i}", "must be an object with a type")
        if part["type"] == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        elif part["type"] not in kinds:
            raise UnsupportedField(f"{where}.{i}.type", "only text parts are available")
        else:
            texts.append(parse_string(part.get("text"), f"{where}.{i}.text"))
    return "\n".join(texts)


def _tool_calls(value: Any, where: str, *, customs: bool) -> list[dict[str, Any]]:
    if not isinstance(value, list) or len(value) > MAX_TOOL_CALLS:
        raise InvalidField(where, f"must be a list of up to {MAX_TOOL_CALLS} tool calls")
    calls: list[dict[str, Any]] = []
    for i, call in enumerate(value):
        at = f"{where}.{i}"
        kind = call.get("type", "function") if isinstance(call, dict) else None
        if customs and kind == CUSTOM:
            checked = custom_call(call.get(CUSTOM), f"{at}.{CUSTOM}")
        elif kind == "function":
            checked = parse_call(call.get("function"), f"{at}.function")
        else:
            raise InvalidField(at, f"must be a call of type function{' or custom' if customs else ''}")
        if call.get("id") is not None:
            checked["id"] = parse_name(call["id"], f"{at}.id")
        calls.append(checked)
    return calls


def parse_call(function: Any, where: str) -> dict[str, Any]:
    """An earlier call as templates expect it, made from its `name` and `arguments`. Raises InvalidField."""
    if not isinstance(function, dict):
        raise InvalidField(where, "must be an object")
    arguments = parse_string(function.get("arguments"), f"{where}.arguments")
    name = parse_name(function.get("name"), f"{where}.name")
    return {"type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}


def custom_call(tool: Any, where: str) -> dict[str, Any]:
    """An earlier call of a custom tool, made from its `name` and `input`. Raises InvalidField."""
    if not isinstance(tool, dict):
        raise InvalidField(where, "must be an object")
    text = parse_string(tool.get(INPUT), f"{where}.{INPUT}")
    name = parse_name(tool.get("name"), f"{where}.name")
    return {"type": "function", "function": {"name": name, "arguments": {INPUT: text}}}


def _arguments(text: str) -> dict[str, Any] | str:
    """Arguments as an object, as templates expect them; malformed arguments from a model are left as text."""
    try:
        value = pydantic_core.from_json(text, allow_inf_nan=False) if text.strip() else {}
        check_finite(value)
    except (ValueError, InvalidBody):
        return text
    return value if isinstance(value, dict) else text


def parse_string(value: Any, where: str) -> str:
    """Raises InvalidField for anything but a string."""
    if not isinstance(value, str):
        raise InvalidField(where, "must be a string")
    return value


def parse_name(value: Any, where: str) -> str:
    """The name of a function, a call or a participant. Raises InvalidField."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS:
        raise InvalidField(where, f"must be a string of 1 to {MAX_NAME_CHARS} characters")
    return value
