"""The headers of all the console's answers, and the rules by which browsers' requests are refused.

Covered: markup and scripts that are not the console's own (CSP), frames, pages of other sites and of other
ports, foreign DNS names that resolve to loopback, changes without the session's token.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import Message, Scope, Send

from serve_app.console.session import Session
from serve_app.errors import PermissionDenied
from serve_app.loopback import is_local_name, is_loopback

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS: Final = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # With no-referrer, forms of our own pages would say `Origin: null`, as those of other sites do.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_OURS: Final = frozenset(name for name, _ in HEADERS)


class Answer:
    """An answer with the policy's headers. Unless the answer says otherwise, it is not cached."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in _OURS]
            if not any(name.lower() == b"cache-control" for name, _ in kept):
                kept.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*kept, *HEADERS]}
        await self._send(message)


def check_origin(request: Request) -> None:
    """Raises PermissionDenied for a change that comes from a page of another origin.

    Browsers send `Sec-Fetch-Site`; over plain HTTP to another machine they send at least `Origin`.
    """
    if request.method in SAFE_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site == "same-origin":
            return
    else:
        origin = request.headers.get("origin")
        if origin is None or urlsplit(origin).netloc == request.headers.get("host"):
            return
    raise PermissionDenied(
        "a page of another site asked for this; open the console itself, and try again there"
    )


def check_local(
    request: Request, peer_of: Callable[[Scope], str | None], allowed_hosts: Collection[str] = ()
) -> None:
    """If there are no keys, raises PermissionDenied unless the request is from this machine, to its own name.

    The owner of another domain can point it to this machine, so `Host` must pass `is_local_name`.
    """
    if not is_loopback(peer_of(request.scope)):
        raise PermissionDenied(
            "without API keys the console is for this machine alone; configure keys to use it from others"
        )
    if not is_local_name(request.headers.get("host", ""), allowed_hosts):
        raise PermissionDenied(
            "without API keys the console must be opened by an address such as 127.0.0.1, by a name without "
            "a dot such as localhost, or by a name in allowed_hosts of the gateway"
        )


def check_token(session: Session, given: str | None) -> None:
    """Raises PermissionDenied unless `given` is the session's own token."""
    if given is None or not hmac.compare_digest(given.encode(), session.csrf.encode()):
        raise PermissionDenied("this page is older than your session; load it again, and try once more")
