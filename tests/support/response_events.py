"""The events of a response's stream."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)


def events_of(raw: str) -> list[Any]:
    """The events of a stream: named by their type, numbered from 0, and of the openai package's types."""
    *parts, rest = raw.split("\n\n")
    if rest:
        raise AssertionError(f"the stream does not end with an event: {rest[-200:]!r}")
    found = []
    for number, part in enumerate(parts):
        match = re.fullmatch(r"event: (\S+)\ndata: (.*)", part)
        if match is None:
            raise AssertionError(f"not an event: {part[:200]!r}")
        event = json.loads(match[2])
        if (event["type"], event["sequence_number"]) != (match[1], number):
            raise AssertionError(f"event {number} has the wrong name or number: {part[:200]!r}")
        found.append(_EVENT.validate_python(event))
    return found
