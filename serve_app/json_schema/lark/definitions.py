"""The rules and terminals of the grammar that is written."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from serve_app.json_schema.lark.notation import LarkError

_MAX_WORK: Final = 2**20  # written characters; other work is counted in characters too. About 0.3 s


class Definitions:
    """Bodies by name; equal bodies share one name."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names: dict[Hashable, str] = {}
        self._bodies: dict[str, str] = {}
        self._left = _MAX_WORK

    def spend(self, amount: int) -> None:
        """Count `amount` of work. Raises LarkError if the grammar becomes too large."""
        self._left -= amount
        if self._left < 0:
            raise LarkError("the grammar is too large")

    def terminal(self, body: str) -> str:
        return self._named(body, f"{self._prefix.upper()}_T")

    def rule(self, body: str) -> str:
        return self._named(body, f"{self._prefix}_r")

    def reserved(self, key: Hashable) -> tuple[str, bool]:
        """The name of a rule whose body is written later, and whether it is new."""
        is_new = key not in self._names
        if is_new:
            self._names[key] = f"{self._prefix}_r{len(self._names)}"
        return self._names[key], is_new

    def write(self, name: str, body: str) -> None:
        self.spend(len(body))
        self._bodies[name] = body

    def lines(self) -> list[str]:
        return [f"{name}: {body}" for name, body in self._bodies.items()]

    def _named(self, body: str, kind: str) -> str:
        key = kind, body
        self.spend(20)
        if key not in self._names:
            self._names[key] = f"{kind}{len(self._names)}"
            self.write(self._names[key], body)
        return self._names[key]
