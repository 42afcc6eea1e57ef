"""The interface of a tool call format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serve_app.text.answer.source import Scan, Source
from serve_app.text.answer.tools.calls import Calls


@dataclass(frozen=True, slots=True)
class Spelling:
    """How forced calls are written: `first` call `between` call `last`.

    A call is written as `name` and the tool's name, then `arguments` and an object, then `end`.
    """

    first: str = ""
    between: str = ""
    last: str = ""
    name: str = '{"name": "'
    arguments: str = '", "arguments": '
    end: str = "}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls.

    `scan` reads calls, beginning after `marker`, or at a character of `bare`. It releases syntax
    from `source`. Any characters still held when it returns or raises Malformed are plain text.
    """

    name: str
    scan: Callable[[Source, Calls], Scan[None]]
    spelling: Spelling
    marker: str = ""  # opens calls wherever it occurs; empty: only a whole answer is calls
    bare: str = ""  # an answer that begins with one of these characters may be calls alone
    tokens: tuple[str, ...] = ()  # the syntax's tokens, which must be shown even if they are special
    to_template: Callable[[dict[str, Any]], dict[str, Any]] = lambda message: message  # for templates
