"""Responses that are kept for later requests. A caller reaches those of its own key alone."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.account import Caller
from serve_app.types.control.command import Command, Done


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """A response and its own input, each as compressed JSON that only the gateways read."""

    id: str
    previous: str = ""  # the response that it goes on from; "": none
    input: bytes
    response: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponses:
    """Those that were found, in any order."""

    responses: tuple[KeptResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepResponse(Command[Done]):
    """Keep a response for its caller. Older ones of the same key may go for it."""

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
    """Whose responses a caller may see: those of its key, and never those of another key of that name."""
    return caller.key_id if caller.anonymous else caller.salt
