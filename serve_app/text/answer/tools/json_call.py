"""A tool call that is a JSON object with a name and arguments, character by character.

Arguments are passed on exactly as they are written: brackets are matched and nothing else is checked, since
a call that has begun cannot be taken back. A character that JSON does not allow outside of strings ends the
arguments, so that a broken call does not swallow the following text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from serve_app.text.answer.source import BLANK, Malformed, Scan, Source
from serve_app.text.answer.tools.calls import Calls

_ARGUMENTS: Final = ("arguments", "parameters")
_OUTSIDE: Final = frozenset(BLANK + ",:+-._")  # besides letters, digits and brackets


def call_object(source: Source, calls: Calls) -> Scan[None]:
    """`{"name": ..., "arguments": {...}}`; other members are dropped. Raises Malformed."""
    yield from source.expect("{")
    name: str | None = None
    has_arguments = False
    while True:
        yield from source.blank()
        key = yield from string(source)
        yield from source.blank()
        yield from source.expect(":")
        first = yield from source.blank()
        if key == "name" and name is None:
            name = yield from string(source)
            calls.check(name)
            if has_arguments:
                calls.open(name)
        elif key in _ARGUMENTS and not has_arguments:
            if first != "{":
                raise Malformed
            has_arguments = True
            if name is not None:
                calls.open(name)
            yield from balanced(source, calls.take_arguments)
            calls.arguments_ended()
        else:
            yield from _value(source, first)
        if (yield from source.blank()) == "}":
            break
        yield from source.expect(",")
    source.take()
    if name is None:
        raise Malformed
    if not has_arguments:
        calls.open(name)
    calls.close("" if has_arguments else "{}")


def call_list(source: Source, calls: Calls) -> Scan[None]:
    """`[` call objects, separated by commas, `]`. Raises Malformed."""
    yield from source.expect("[")
    while True:
        yield from source.blank()
        yield from call_object(source, calls)
        if (yield from source.blank()) != ",":
            break
        source.take()
    yield from source.expect("]", or_end=True)
    source.release()


def balanced(source: Source, take: Callable[[int], None]) -> Scan[None]:
    """An object or list; `take` is called with its characters as they arrive. Raises Malformed."""
    depth = 0
    in_string = escaped = False
    while (yield from source.peek()):
        text, start = source.text, source.at
        for position in range(start, len(text)):
            char = text[position]
            if in_string:
                if escaped:
                    escaped = False
                elif char == "\\":
                    escaped = True
                elif char == '"':
                    in_string = False
            elif char == '"':
                in_string = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if depth == 0:
                    take(position + 1 - start)
                    return
            elif not (char.isalnum() or char in _OUTSIDE):
                take(position - start)
                raise Malformed
        take(len(text) - start)
    raise Malformed


def string(source: Source) -> Scan[str]:
    """A JSON string, decoded. Raises Malformed."""
    yield from source.expect('"')
    chars = ['"']
    escaped = False
    while True:
        char = yield from source.peek()
        if not char:
            raise Malformed
        source.take()
        chars.append(char)
        if char == '"' and not escaped:
            break
        escaped = char == "\\" and not escaped
    try:
        return str(json.loads("".join(chars), strict=False))
    except ValueError as error:
        raise Malformed from error


def _value(source: Source, first: str) -> Scan[None]:
    """Any JSON value, which is dropped with the call's syntax."""
    if first and first in "{[":
        yield from balanced(source, source.take)
    elif first == '"':
        yield from string(source)
    else:
        if not _of_scalar(first):
            raise Malformed
        while _of_scalar(first):
            source.take()
            first = yield from source.peek()


def _of_scalar(char: str) -> bool:
    return char.isalnum() or (char != "" and char in "+-.")
