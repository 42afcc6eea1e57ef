"""A command to the control plane: one kind of call, one kind of reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[ReplyT]):
    """What a gateway asks of the control plane. `ReplyT` is the type of the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Command[ReplyT]):
    """A command that is in force once gateways have the next snapshot."""

    @property
    def changed_endpoint(self) -> str:
        """The endpoint that gateways must not hold back; "": the change is of no single one."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The reply to a command that has nothing else to say."""
