"""Calls after `[TOOL_CALLS]`: a JSON list, or (newer models) a name and its arguments.

    [TOOL_CALLS] [{"name": "f", "arguments": {}}, ...]
    [TOOL_CALLS]f{}[TOOL_CALLS]g[CALL_ID]012345678[ARGS]{}

The family's templates refuse call ids that are not exactly nine letters or digits.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final

from serve_app.text.answer.source import Malformed, Scan, Source
from serve_app.text.answer.tools.calls import Calls
from serve_app.text.answer.tools.format import Spelling, ToolFormat
from serve_app.text.answer.tools.json_call import balanced, call_list, call_object

MARKER: Final = "[TOOL_CALLS]"
_CALL_ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"


def _scan(source: Source, calls: Calls) -> Scan[None]:
    first = yield from source.blank()
    if first == "[":
        yield from call_list(source, calls)
    elif first == "{":
        yield from call_object(source, calls)
    else:
        name = yield from _word(source)
        calls.check(name)
        if (yield from source.blank()) == "[":
            yield from _before_arguments(source)
        if (yield from source.blank()) != "{":
            raise Malformed
        calls.open(name)
        yield from balanced(source, calls.take_arguments)
        calls.close()


def _before_arguments(source: Source) -> Scan[None]:
    """`[ARGS]`, perhaps after the model's own id of the call."""
    yield from source.expect("[")
    if (yield from source.peek()) == _CALL_ID[1]:
        yield from source.expect(_CALL_ID[1:])
        yield from _word(source)
        yield from source.expect("[")
    yield from source.expect(ARGS[1:])


def _word(source: Source) -> Scan[str]:
    chars: list[str] = []
    while (char := (yield from source.peek())) and (char.isalnum() or char in "_-."):
        source.take()
        chars.append(char)
    return "".join(chars)


def short_id(call_id: str) -> str:
    """An id that the templates accept; equal `call_id`s give equal ids."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A chat message whose call ids are short."""
    changed = dict(message)
    if isinstance(message.get("tool_call_id"), str):
        changed["tool_call_id"] = short_id(message["tool_call_id"])
    if message.get("tool_calls"):
        changed["tool_calls"] = [
            {**call, "id": short_id(str(call.get("id", i)))} for i, call in enumerate(message["tool_calls"])
        ]
    return changed


MISTRAL: Final = ToolFormat(
    "mistral",
    _scan,
    Spelling(first=f"{MARKER} [", between=", ", last="]"),
    marker=MARKER,
    tokens=(MARKER, _CALL_ID, ARGS),
    to_template=with_short_ids,
)
# The same for a model that has a token for [ARGS].
MISTRAL_ARGS: Final = replace(
    MISTRAL, spelling=Spelling(first=MARKER, between=MARKER, name="", arguments=ARGS, end="")
)
