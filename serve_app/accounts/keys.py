"""API keys in their static form: hashes in a file or in the environment.

One key a line (in the environment: separated by blanks), `#` starts a comment:

    name:scope,scope:sha256

`name` is 1-64 characters of [A-Za-z0-9._-] and shows in logs, scopes are those of
`types.Scope`, `sha256` is the lower-case hex digest of the whole key. The file is named by
`keys_file`, the variable is SERVE_APP_API_KEYS; both may be used. Keys are 256 random
bits, so a plain digest is enough: there is nothing to guess from a dump of them.

    $ serve-app keys new alice
    $ serve-app keys new prometheus --scopes metrics

Covered: constant-time comparison, no key at rest, nobody but loopback without keys.
Not covered: revocation without a restart, quotas, brute force (2**256 is enough).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.config import GatewayConfig
from serve_app.errors import PermissionDenied, Unauthenticated
from serve_app.types import Caller, Scope

ENVIRONMENT: Final = "SERVE_APP_API_KEYS"
PREFIX: Final = "sk-"
MAX_KEY_CHARS: Final = 256

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,64}):(?P<scopes>[a-z,]+):(?P<digest>[0-9a-f]{64})")


class KeyFileError(ValueError):
    """A line of the key file or variable that is not understood; names the line, not its content."""


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    caller: Caller


class StaticAccounts:
    """The keys an operator wrote down; read once, at start."""

    def __init__(self, config: GatewayConfig, environ: Mapping[str, str] = os.environ) -> None:
        """Raises KeyFileError or OSError: a server must not start open because a file is broken."""
        self._keys: list[_Key] = []
        if config.keys_file is not None:
            lines = config.keys_file.read_text(encoding="utf-8").splitlines()
            self._keys += _parse(lines, "the key file, line")
            if not self._keys:
                raise KeyFileError("the key file holds no key")
        self._keys += _parse(environ.get(ENVIRONMENT, "").split(), f"{ENVIRONMENT}, entry")
        self._open_to_all = config.allow_remote_without_keys
        # Without keys there is one tenant; its salt only has to differ from every key's.
        self._anonymous = Caller(
            key_id="anonymous", scopes=frozenset(Scope), salt=secrets.token_hex(16), anonymous=True
        )

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def authenticate(self, authorization: str | None, peer: str | None) -> Caller:
        """See `api.backend.Accounts`. Without keys, peers beyond loopback are refused."""
        if not self._keys:
            if self._open_to_all or is_loopback(peer):
                return self._anonymous
            raise PermissionDenied(
                "no API key is configured, so only this machine is served; configure API keys (keys_file or "
                f"{ENVIRONMENT}), or allow_remote_without_keys on a closed network"
            )
        if authorization is None:
            raise Unauthenticated("an API key is needed: send it as 'Authorization: Bearer sk-...'")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or len(key) > MAX_KEY_CHARS:
            raise Unauthenticated("the Authorization header must be 'Bearer' and an API key")
        digest = _digest(key.strip())
        found: Caller | None = None
        for known in self._keys:  # all of them, so that time tells nothing
            if hmac.compare_digest(known.digest, digest):
                found = known.caller
        if found is None:
            raise Unauthenticated("the API key is not valid")
        return found


def is_loopback(peer: str | None) -> bool:
    """Whether `peer`, an IP address as text, is this machine itself."""
    try:
        address = ipaddress.ip_address(peer or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1 on a dual-stack socket
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def new_key(name: str, scopes: Iterable[str] = (Scope.INFERENCE,)) -> tuple[str, str]:
    """A fresh key and its line for the key file. Raises KeyFileError for a bad name or scope."""
    key = PREFIX + secrets.token_urlsafe(32)
    line = f"{name}:{','.join(sorted(set(scopes)))}:{_digest(key).hex()}"
    _parse([line], "name or scopes")
    return key, line


def _parse(lines: Iterable[str], where: str) -> list[_Key]:
    keys: list[_Key] = []
    for number, raw in enumerate(lines, start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        match = _LINE.fullmatch(line)
        if match is None or not set(match["scopes"].split(",")) <= set(Scope):
            expected = f"name:scopes:sha256, with scopes of {', '.join(Scope)}"
            raise KeyFileError(f"{where} {number}: expected {expected}")
        name, digest = match["name"], bytes.fromhex(match["digest"])
        scopes = frozenset(Scope(scope) for scope in match["scopes"].split(","))
        keys.append(_Key(digest, Caller(key_id=name, scopes=scopes, salt=_salt(digest, name))))
    return keys


def _salt(digest: bytes, name: str) -> str:
    # The digest is the server's secret: equal on every gateway, unknown to other tenants.
    return hmac.new(digest, f"prefix-cache:{name}".encode(), hashlib.sha256).hexdigest()[:32]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
