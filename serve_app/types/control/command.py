"""Commands to the control plane: each kind of command has one kind of reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[ReplyT]):
    """A call from a gateway to the control plane. `ReplyT` is the type of the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Command[ReplyT]):
    """A command that takes effect once gateways have the next snapshot."""

    @property
    def changed_endpoint(self) -> str:
        """The endpoint whose change must reach the gateways; "" if no single endpoint changes."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointChange(Change[ReplyT]):
    """A change to one endpoint."""

    endpoint: str

    @property
    def changed_endpoint(self) -> str:
        return self.endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The empty reply to a command."""
