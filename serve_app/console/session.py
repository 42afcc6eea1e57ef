"""Sessions: who signed in, encrypted in a cookie that the browser stores and only the server can read.

Covered: no one else can read or change a cookie, and it expires. Not covered: a copied cookie works until it
expires or its key is revoked, since the server keeps no list of sessions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import Request

COOKIE: Final = "serve_app_console"
PATH: Final = "/console"
OWNER_CHARS: Final = 16
MAX_COOKIE_CHARS: Final = 4096  # browsers reject larger cookies


@dataclass(frozen=True, slots=True)
class Vault:
    """Where a browser stores the chats of one API key, and the AES key with which it encrypts them.

    Both are derived from the API key and the console's secret, so they are the same at every sign-in.
    """

    owner: str  # hexadecimal; reveals nothing about the API key
    key: str  # base64 of 32 bytes


@dataclass(frozen=True, slots=True)
class Session:
    """One browser that signed in. `key` is "" if this server needs no keys."""

    key: str
    csrf: str  # sent with every change; other sites cannot read it


class Sessions:
    """Makes and reads cookies."""

    def __init__(self, secret: str, age_s: int) -> None:
        digest = hashlib.sha256(b"serve-app console session\0" + secret.encode()).digest()
        self._fernet = Fernet(base64.urlsafe_b64encode(digest))
        self._vaults = hashlib.sha256(b"serve-app console vaults\0" + secret.encode()).digest()
        self._age_s = age_s

    def begin(self, key: str) -> Session:
        """A new session, with a token of its own."""
        return Session(key, secrets.token_urlsafe(24))

    def vault(self, session: Session) -> Vault:
        """The vault of the API key of `session`."""
        owner, key = (
            hmac.digest(self._vaults, f"{purpose}\0{session.key}".encode(), "sha256")
            for purpose in ("owner", "key")
        )
        return Vault(owner.hex()[:OWNER_CHARS], base64.b64encode(key).decode())

    def read(self, sealed: str | None) -> Session | None:
        """The session in a cookie; None if there is no cookie, or it was altered or is too old."""
        if not sealed or len(sealed) > MAX_COOKIE_CHARS:
            return None
        try:
            key, csrf = json.loads(self._fernet.decrypt(sealed.encode("latin-1"), ttl=self._age_s))
        except InvalidToken:
            return None
        return Session(key, csrf)

    def seal(self, session: Session) -> str:
        """The cookie's value, encrypted."""
        return self._fernet.encrypt(json.dumps([session.key, session.csrf]).encode()).decode()

    def cookie(self, session: Session, *, secure: bool) -> str:
        """The header `Set-Cookie` for a new session."""
        return _cookie(self.seal(session), self._age_s, secure=secure)


def is_secure(request: Request) -> bool:
    """Whether the browser uses TLS, to us or to a proxy in front of us; if so, its cookie is for TLS only.

    A client that forges the header harms only itself: its cookie is then never sent over plain HTTP.
    """
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))


def ended(*, secure: bool) -> str:
    """The header `Set-Cookie` that deletes the cookie."""
    return _cookie("", 0, secure=secure)


def _cookie(value: str, age_s: int, *, secure: bool) -> str:
    end = "; Secure" if secure else ""
    return f"{COOKIE}={value}; Path={PATH}; Max-Age={age_s}; HttpOnly; SameSite=Strict{end}"
