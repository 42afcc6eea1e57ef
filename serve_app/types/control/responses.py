"""Responses that are kept for later requests. A caller can reach only the responses of its own key."""

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
    """Keep a response for its caller. Older responses of the same key may be dropped to make room."""

    response: KeptResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallResponses(Command[KeptResponses]):
    """Fetch the responses `ids`, and the response `last` with all responses before it. An empty `last` names
    no response."""

    ids: tuple[str, ...] = ()
    last: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Whether there was such a response to remove."""

    found: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResponse(Command[Forgotten]):
    """Remove a response."""

    id: str


def owner_of(caller: Caller) -> str:
    """The owner of the responses that a caller may see; another key with the same name is another owner."""
    return caller.key_id if caller.anonymous else caller.salt
