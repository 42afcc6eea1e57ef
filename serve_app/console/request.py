"""What a handler is given for a request: the visitor, their permissions, and the API with their key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from starlette.requests import Request

from serve_app.console.forms import Form
from serve_app.console.public_api import PublicApi
from serve_app.console.session import Session, Vault

ME: Final = "/api/2.0/preview/scim/v2/Me"  # path in the public API for who is calling


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who signed in, according to the public API."""

    name: str
    scopes: frozenset[str]

    @classmethod
    def of(cls, me: Mapping[str, Any]) -> Self:
        """Parse the API's answer to `ME`."""
        return cls(me["displayName"], frozenset(each["value"] for each in me["entitlements"]))

    def can(self, scope: str) -> bool:
        """Whether the key has this scope: inference, metrics, routing or manage."""
        return scope in self.scopes


@dataclass(frozen=True, slots=True)
class ConsoleRequest:
    """One request for a page."""

    api: PublicApi
    session: Session
    caller: Visitor | None  # None on the sign-in page
    form: Form = field(default_factory=lambda: Form({}))  # of a change, after its token was checked
    vault: Vault | None = None  # None if the caller is unknown because of an error

    @property
    def csrf(self) -> str:
        """The token that every change must carry."""
        return self.session.csrf

    @property
    def needs_no_key(self) -> bool:
        """Whether this server has no keys, so there is no signing in or out."""
        return self.caller is not None and not self.session.key

    def can(self, scope: str) -> bool:
        """Whether the caller's key has this scope."""
        return self.caller is not None and self.caller.can(scope)


def console_of(request: Request) -> ConsoleRequest:
    """The console's data for `request`."""
    console: ConsoleRequest = request.state.console
    return console
