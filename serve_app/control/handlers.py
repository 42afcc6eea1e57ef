"""The handlers of commands, by part of the control plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from serve_app.types import Caller
from serve_app.types.control import Command

Handler: TypeAlias = Callable[[Any, Caller], Awaitable[Any]]  # (command, its sender) -> reply
Handlers: TypeAlias = Mapping[type[Command[Any]], Handler]


def joined(parts: Iterable[Handlers]) -> dict[type[Command[Any]], Handler]:
    """The handlers of all parts. Raises ValueError if two handlers answer the same command."""
    found: dict[type[Command[Any]], Handler] = {}
    for part in parts:
        for command, handler in part.items():
            if command in found:
                raise ValueError(f"{command.__name__} has two handlers")
            found[command] = handler
    return found
