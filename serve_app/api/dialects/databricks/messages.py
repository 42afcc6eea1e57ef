"""Chat messages of Databricks -> plain mappings for a chat template.

The rules are stricter than OpenAI's: roles must come in a fixed order, and a tool's answer must belong
to a call in the preceding assistant message. Valid messages are flattened in the same way as OpenAI's.

    conversation := [system] user ( turn )*
    turn         := assistant(text) user | assistant(tool_calls) tool+ [ assistant(text) user ]
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from serve_app.api.dialects.chat.messages import known
from serve_app.api.dialects.chat.messages import parse_messages as flattened
from serve_app.api.dialects.databricks.thinking import with_thoughts_apart
from serve_app.errors import InvalidField
from serve_app.json_schema.numerals import dumps
from serve_app.limits import MAX_MESSAGES

ROLES: Final = ("system", "user", "assistant", "tool")

_CALLING: Final = "assistant with tool_calls"

# The roles that may follow each; "" is the beginning.
_NEXT: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "": ("system", "user"),
        "system": ("user",),
        "user": ("assistant", _CALLING),
        "assistant": ("user",),
        _CALLING: ("tool",),
        "tool": ("tool", "assistant", _CALLING),
    }
)
_LAST: Final = ("user", "tool")

ORDER: Final = (
    "roles must alternate between user and assistant, with an optional system message at the start; "
    "tool messages must follow an assistant message that contains tool calls; "
    "the last message must be of role user or tool"
)


def parse_messages(value: Any) -> tuple[dict[str, Any], ...]:
    """Checked and flattened messages. Raises InvalidField or UnsupportedField."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise InvalidField("messages", f"is required and must be a list of 1 to {MAX_MESSAGES} messages")
    before, ids = "", frozenset[str]()
    for i, message in enumerate(value):
        where = f"messages.{i}"
        _check(message, where)
        calls = message.get("tool_calls")
        role = _CALLING if calls else message["role"]
        if role not in _NEXT[before]:
            raise InvalidField(where, ORDER)
        if calls:
            ids = frozenset(call["id"] for call in calls)
        if role == "tool" and message["tool_call_id"] not in ids:
            raise InvalidField(
                f"{where}.tool_call_id", "must be an id of the preceding assistant message's tool_calls"
            )
        before = role
    if before not in _LAST:
        raise InvalidField(f"messages.{len(value) - 1}", ORDER)
    apart = [with_thoughts_apart(message, f"messages.{i}") for i, message in enumerate(value)]
    return flattened([_with_text_arguments(known(message)) for message in apart])


def _check(message: Any, where: str) -> None:
    """Check one message by itself, whatever its place in the list."""
    if not isinstance(message, dict):
        raise InvalidField(where, "must be an object")
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        raise InvalidField(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    if calls:
        if role != "assistant":
            raise InvalidField(f"{where}.tool_calls", "only an assistant message may have tool calls")
        _check_calls(calls, f"{where}.tool_calls")
    elif content is None:
        raise InvalidField(f"{where}.content", "is required")
    call_id = message.get("tool_call_id")
    if role == "tool" and (not isinstance(call_id, str) or not call_id):
        raise InvalidField(f"{where}.tool_call_id", "is required and must be a string")
    if role != "tool" and call_id:
        raise InvalidField(f"{where}.tool_call_id", "only a tool message may have one")


def _check_calls(calls: Any, where: str) -> None:
    """Check those members of calls that OpenAI's protocol makes optional."""
    if not isinstance(calls, list):
        raise InvalidField(where, "must be a list of tool calls")
    for i, call in enumerate(calls):
        if not isinstance(call, dict) or call.get("type") != "function":
            raise InvalidField(f"{where}.{i}.type", 'is required and must be "function"')
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise InvalidField(f"{where}.{i}.id", "is required and must be a string")
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str | dict):
            raise InvalidField(
                f"{where}.{i}.function.arguments", "is required and must be a string or an object"
            )


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as JSON text; clients may also send them as an object."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_text(call) for call in calls]}


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, dict):
        arguments = dumps(arguments)
    return {**call, "function": {**function, "arguments": arguments}}
