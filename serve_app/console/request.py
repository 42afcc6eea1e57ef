"""What a handler of a page knows of a request: whose it is, what they may do, the API with their key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from starlette.requests import Request

from serve_app.console.forms import Form
from serve_app.console.public_api import PublicApi
from serve_app.console.session import Session, Vault

ME: Final = "/api/2.0/preview/scim/v2/Me"  # of the public API: who is calling


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who signed in, as the public API tells it."""

    name: str
    scopes: frozenset[str]
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, me: Mapping[str, Any]) -> Self:
        """From the API's answer to who is calling."""
        return cls(
            me["displayName"],
            frozenset(each["value"] for each in me["entitlements"]),
            tuple(each["value"] for each in me["groups"]),
        )

    def can(self, scope: str) -> bool:
        """Whether the key has this scope: inference, metrics, routing or manage."""
        return scope in self.scopes


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """One request for a page."""

    api: PublicApi
    session: Session
    caller: Visitor | None  # None on the page of signing in
    form: Form = field(default_factory=lambda: Form({}))  # of a change, whose token is checked
    vault: Vault | None = None  # None where an error hides who is asking

    @property
    def csrf(self) -> str:
        """The token that every change must carry."""
        return self.session.csrf

    @property
    def needs_no_key(self) -> bool:
        """Whether this server has no keys, so that nobody signs in or out."""
        return self.caller is not None and not self.session.key

    def can(self, scope: str) -> bool:
        """Whether the caller's key has this scope."""
        return self.caller is not None and self.caller.can(scope)


def console_of(request: Request) -> ConsoleRequest:
    """What the console knows of `request`."""
    console: ConsoleRequest = request.state.console
    return console
