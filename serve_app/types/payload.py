"""A request and its answer, as the bytes on the wire, for an inference table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from serve_app.types.result import Usage


class BodyForm(Protocol):
    """How bodies of a transport are written as text. Called in the thread that writes, not in requests."""

    def request(self, body: bytes) -> str:
        """The text of a request's body. Raises ValueError if it cannot be written as text."""
        ...

    def response(self, parts: Sequence[bytes]) -> str:
        """The text of an answer that was sent in `parts`. Same errors as `request`."""
        ...


class TextBodies:
    """Bodies that are text already."""

    def request(self, body: bytes) -> str:
        return body.decode()

    def response(self, parts: Sequence[bytes]) -> str:
        return b"".join(parts).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One request that ended. This object never leaves its process, and has neither headers nor API key."""

    folder: tuple[str, str, str]  # catalogue, schema and table
    id: str  # ours, as in the usage journal and in the ids of answers
    client_id: str | None  # the client's X-Request-Id
    started: float  # Unix seconds
    total_s: float
    first_token_s: float | None
    status: int  # HTTP; 0: nothing was sent
    request: bytes | None  # None: `codes` says why
    response: tuple[bytes, ...] | None  # the parts in which it was sent
    form: BodyForm
    redact: Callable[[str], str] | None  # removes personal data from `request`; None: keep it all
    codes: tuple[str, ...]
    endpoint: str
    entity: str
    route: str
    key_id: str
    requester: str  # user, service principal, or the key's name
    usage: Usage

    @property
    def size(self) -> int:
        """The approximate size of the object in memory, in bytes."""
        return 1024 + len(self.request or b"") + sum(map(len, self.response or ()))
