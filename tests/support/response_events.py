"""The events of a response's stream, as OpenAI frames them and as OpenVINO Model Server does."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)
_NAMED: Final = re.compile(r"event: (\S+)\ndata: (.*)")
_UNNAMED: Final = re.compile(r"data: (.*)")
_DONE: Final = "data: [DONE]"


def events_of(raw: str) -> list[Any]:
    """The events of a stream: named by their type, numbered from 0, and of the openai package's types."""
    found = []
    for number, part in enumerate(_parts(raw)):
        match = _NAMED.fullmatch(part)
        if match is None:
            raise AssertionError(f"not an event: {part[:200]!r}")
        event = json.loads(match[2])
        if (event["type"], event["sequence_number"]) != (match[1], number):
            raise AssertionError(f"event {number} has the wrong name or number: {part[:200]!r}")
        found.append(_EVENT.validate_python(event))
    return found


def unnamed_events_of(raw: str) -> list[dict[str, Any]]:
    """The events of a stream without names, numbered from 0, before its terminator."""
    *parts, end = _parts(raw)
    if end != _DONE:
        raise AssertionError(f"the stream does not end with {_DONE}: {end[:200]!r}")
    found: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        match = _UNNAMED.fullmatch(part)
        event = match and json.loads(match[1])
        if not isinstance(event, dict) or event["sequence_number"] != number:
            raise AssertionError(f"not event {number}: {part[:200]!r}")
        found.append(event)
    return found


def _parts(raw: str) -> list[str]:
    *parts, rest = raw.split("\n\n")
    if rest:
        raise AssertionError(f"the stream does not end with an event: {rest[-200:]!r}")
    return parts
