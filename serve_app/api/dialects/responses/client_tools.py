"""OpenAI's tools that the client runs: `local_shell`, `shell` and `apply_patch`.

Each is offered to the model as a function with the known schema. A call, and likewise the client's answer, is
an item of its own type, in the shape that clients of the tool expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pydantic_core

from serve_app.api.dialects.chat.messages import parse_name, parse_string
from serve_app.api.dialects.responses.output_items import IN_PROGRESS, INCOMPLETE, Call, Event, Fields
from serve_app.api.protocol.fields import as_integer
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_CONTENT_PARTS

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_INTEGER: Final = {"type": "integer"}
_OPERATIONS: Final = ("create_file", "update_file", "delete_file")
_LOCAL: Final = "local"  # where a shell may run: at the client


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs. The tool's name is its type."""

    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    member: str  # of the item of a call: what the client is to do
    shown: Callable[[Fields], Fields]  # that member, out of the arguments, of which some may be missing


def _executed(given: Fields) -> Fields:
    command, env = given.get("command"), given.get("env")
    return {
        "type": "exec",
        "command": command if isinstance(command, list) else [],
        "env": env if isinstance(env, dict) else {},
        **{name: given.get(name) for name in ("timeout_ms", "user", "working_directory")},
    }


def _run(given: Fields) -> Fields:
    commands = given.get("commands")
    return {
        "commands": commands if isinstance(commands, list) else [],
        **{name: given.get(name) for name in ("timeout_ms", "max_output_length")},
    }


def _patched(given: Fields) -> Fields:
    kind = given.get("type", _OPERATIONS[1])
    diff = {} if kind == _OPERATIONS[2] else {"diff": given.get("diff", "")}
    return {"type": kind, "path": given.get("path", ""), **diff}


TOOLS: Final[Mapping[str, ClientTool]] = {
    "local_shell": ClientTool(
        "Run a command on the user's machine.",
        {
            "command": {**_TEXTS, "description": "The program and its arguments."},
            "env": {"type": "object", "additionalProperties": _TEXT},
            "timeout_ms": _INTEGER,
            "working_directory": _TEXT,
        },
        ("command",),
        "action",
        _executed,
    ),
    "shell": ClientTool(
        "Run commands in a shell on the user's machine.",
        {
            "commands": {**_TEXTS, "description": "Each is run in a shell."},
            "timeout_ms": _INTEGER,
            "max_output_length": {**_INTEGER, "description": "Most characters of output that are wanted."},
        },
        ("commands",),
        "action",
        _run,
    ),
    "apply_patch": ClientTool(
        "Create, change or delete a file.",
        {
            "type": {**_TEXT, "enum": list(_OPERATIONS)},
            "path": _TEXT,
            "diff": {**_TEXT, "description": "The change as a V4A diff; not to delete a file."},
        },
        ("type", "path"),
        "operation",
        _patched,
    ),
}
_UNFINISHED: Final = {"apply_patch": IN_PROGRESS}  # whose items have no word for a call that was cut
CALLS: Final = {f"{name}_call": name for name in TOOLS}  # types of items -> the tool
OUTPUTS: Final = {f"{name}_call_output": name for name in TOOLS}


def function_of(tool: Fields, where: str) -> Fields:
    """The tool as a function. Raises UnsupportedField for a shell that OpenAI's servers would run."""
    environment = tool.get("environment")
    if environment is not None and (not isinstance(environment, dict) or environment.get("type") != _LOCAL):
        raise UnsupportedField(f"{where}.environment", "only local is available: the client runs commands")
    known = TOOLS[tool["type"]]
    parameters = {"type": "object", "properties": known.properties, "required": list(known.required)}
    return {"name": tool["type"], "description": known.description, "parameters": parameters}


class ClientToolCall(Call):
    """A call of a tool that the client runs. Its action is sent once the call is complete."""

    is_told_in_pieces = False
    is_told_late = True

    def end(self) -> Iterator[Event]:
        yield from ()

    def fields(self) -> Fields:
        known = TOOLS[self.name]
        return {
            "id": self.id,
            "type": f"{self.name}_call",
            "call_id": self.call_id,
            known.member: known.shown(self._given()),
            "status": _UNFINISHED.get(self.name, self.status) if self.status == INCOMPLETE else self.status,
        }

    def _given(self) -> Fields:
        """The arguments; if the call was cut off, the ones that arrived."""
        try:
            given = pydantic_core.from_json(self.arguments or "{}", allow_partial="trailing-strings")
        except ValueError:
            return {}
        return given if isinstance(given, dict) else {}


def earlier_call(item: Fields, kind: str, where: str) -> Fields:
    """An earlier call as templates expect it. Raises InvalidField."""
    name = CALLS[kind]
    known = TOOLS[name]
    given = item.get(known.member)
    if not isinstance(given, dict):
        raise InvalidField(f"{where}.{known.member}", "must be an object")
    arguments = {key: given[key] for key in known.properties if given.get(key) not in (None, {})}
    call_id = parse_name(item.get("call_id") or item.get("id"), f"{where}.call_id")
    return {"type": "function", "function": {"name": name, "arguments": arguments}, "id": call_id}


def answered(item: Fields, kind: str, where: str) -> tuple[str, str]:
    """The id of the call that the client answers, and the answer for the model. Raises InvalidField."""
    # The output of a local shell has its call's id as its own id.
    call_id = parse_name(item.get("call_id") or item.get("id"), f"{where}.call_id")
    output, at = item.get("output"), f"{where}.output"
    if OUTPUTS[kind] == "shell":
        return call_id, _shell_output(output, at)
    if OUTPUTS[kind] == "apply_patch":
        status = parse_string(item.get("status"), f"{where}.status")
        return call_id, f"{status}\n{parse_string(output, at)}" if output else status
    return call_id, parse_string(output, at)


def _shell_output(output: Any, where: str) -> str:
    if not isinstance(output, list) or len(output) > MAX_CONTENT_PARTS:
        raise InvalidField(where, f"must be a list of up to {MAX_CONTENT_PARTS} outputs of commands")
    texts: list[str] = []
    for i, each in enumerate(output):
        if not isinstance(each, dict) or not isinstance(each.get("outcome"), dict):
            raise InvalidField(f"{where}.{i}", "must be an object with stdout, stderr and an outcome")
        texts += [parse_string(each.get(name) or "", f"{where}.{i}.{name}") for name in ("stdout", "stderr")]
        outcome = each["outcome"]
        code = as_integer(outcome.get("exit_code"))
        if outcome.get("type") != "timeout" and code is None:
            raise InvalidField(f"{where}.{i}.outcome.exit_code", "must be an integer")
        texts.append("[timeout]" if code is None else f"[exit code {code}]")
    return "\n".join(filter(None, texts))
