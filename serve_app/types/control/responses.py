"""Responses that are kept for later requests. A caller reaches only those of its own key."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.account import Caller
from serve_app.types.control.command import Command, Done


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """A response and its own input, each as compressed JSON that only the gateways read."""

    id: str
    previous: str = ""  # the response that it continues; "": none
    input: bytes
    response: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponses:
    """The responses that were found, in any order."""

    responses: tuple[KeptResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepResponse(Command[Done]):
    """Keep a response for its caller. Older ones of the same key may be dropped for it."""

    response: KeptResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallResponses(Command[KeptResponses]):
    """The responses `ids`, and the response `last` with all that it goes on from. "": none."""

    ids: tuple[str, ...] = ()
    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Whether there was such a response."""

    found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResponse(Command[Forgotten]):
    """Remove a response."""

    id: str


def owner_of(caller: Caller) -> str:
    """The owner whose responses a caller may see: its key, and never another key of the same name."""
    return caller.key_id if caller.anonymous else caller.salt
