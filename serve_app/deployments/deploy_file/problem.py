"""A problem of a deploy file and its place: a line, and a path that has names beside the indices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from serve_app.endpoints.catalogue import field_path

Path: TypeAlias = tuple[str | int, ...]  # into a deploy file: ("applications", 0, "args")


class Severity(StrEnum):
    """Whether the file can still be deployed."""

    ERROR = "error"  # it cannot: it would fail, or do something else than it says
    WARNING = "warning"  # it can, but is probably not what was meant


@dataclass(frozen=True)
class Problem:
    """One thing to change in a deploy file; the message says what to write instead."""

    where: str  # "applications[1].args.engine (application 'model-a')"; empty: the file as a whole
    message: str
    severity: Severity = Severity.ERROR
    path: Path = ()
    line: int | None = None  # of the file, counted from 1; None: not known, or the file as a whole

    def __str__(self) -> str:
        line = None if self.line is None else f"line {self.line}"
        return ": ".join(part for part in (self.severity, line, self.where, self.message) if part)

    def of(self, file: object) -> str:
        """`FILE:LINE: problem`, as compilers and editors write it."""
        place = f"{file}" if self.line is None else f"{file}:{self.line}"
        return f"{place}: {replace(self, line=None)}"


@dataclass(frozen=True)
class Place:
    """A field of a deploy file, and the names on the way to it."""

    path: Path = ()
    names: tuple[str, ...] = ()

    def at(self, *parts: str | int) -> Place:
        """A field below this one."""
        return replace(self, path=self.path + parts)

    def named(self, kind: str, name: object) -> Place:
        """This place with the entry's name added, because indices in a file are hard to count."""
        return replace(self, names=(*self.names, f"{kind} {name!r}")) if isinstance(name, str) else self

    def error(self, message: str) -> Problem:
        return Problem(str(self), message, Severity.ERROR, self.path)

    def warning(self, message: str) -> Problem:
        return Problem(str(self), message, Severity.WARNING, self.path)

    def __str__(self) -> str:
        path = field_path(self.path)
        return f"{path} ({', '.join(self.names)})" if self.names else path
