"""API keys: how one is made, and which parts are kept.

A key is `sk-` and 256 random bits. Only its SHA-256 is kept: a key with so much randomness cannot be
guessed from its digest. Handles neither files nor requests.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Final

from serve_app.types import Scope

PREFIX: Final = "sk-"
SHOWN_CHARS: Final = 8  # the first characters, by which the owner recognises the key
MAX_KEY_CHARS: Final = 256
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")  # of a key: it appears in logs and in usage
EXPECTED: Final = f"expected name:scopes:sha256, with scopes of {', '.join(Scope)}"
ANONYMOUS: Final = "anonymous"  # the name of every caller while there are no keys


class KeyFileError(ValueError):
    """A line of the key file or variable that cannot be parsed; names the line, not its content."""


def new_key(name: str, scopes: Iterable[str] = (Scope.INFERENCE,)) -> tuple[str, str]:
    """A fresh key and its line for the key file. Raises KeyFileError for a bad name or scope."""
    wanted = sorted(set(scopes))
    if NAME.fullmatch(name) is None or not wanted or not set(wanted) <= set(Scope):
        raise KeyFileError(f"name or scopes: {EXPECTED}")
    key = new_secret()
    return key, f"{name}:{','.join(wanted)}:{digest_of(key).hex()}"


def new_secret() -> str:
    """A fresh key."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> bytes:
    """SHA-256 of the whole key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def salt_of(digest: bytes, name: str) -> str:
    """The salt of the key's tenant in prefix caches.

    It is derived from the digest, which is the same on every gateway and unknown to other tenants.
    """
    return hmac.new(digest, f"prefix-cache:{name}".encode(), hashlib.sha256).hexdigest()[:32]
