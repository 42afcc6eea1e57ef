"""A command to the control plane: one kind of call, one kind of reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[ReplyT]):
    """A call from a gateway to the control plane. `ReplyT` is the type of the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Command[ReplyT]):
    """A command that is in force once gateways have the next snapshot."""

    @property
    def changed_endpoint(self) -> str:
        """The endpoint that gateways must have in effect; "" if the change is not about a single one."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChange(Change[ReplyT]):
    """A change of one endpoint."""

    endpoint: str

    @property
    def changed_endpoint(self) -> str:
        return self.endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The empty reply to a command."""
