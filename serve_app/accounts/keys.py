"""API keys in their static form: hashes in a file or in the environment.

One key a line (in the environment: separated by blanks), `#` starts a comment:

    name:scope,scope:sha256

`name` is 1-64 characters of [A-Za-z0-9._-] and shows in logs, scopes are those of
`types.Scope`, `sha256` is the lower-case hex digest of the whole key. The file is named by
`keys_file` or SERVE_APP_API_KEYS_FILE, the variable is SERVE_APP_API_KEYS; both may be used.
Keys are 256 random bits, so a plain digest is enough: there is nothing to guess from a dump
of them.

The file is read again when it changes, within KeyFile.CHECK_S. A file that then cannot be
read or understood changes nothing, and is logged; one that holds no key shuts everybody out.

    $ serve-app keys new alice
    $ serve-app keys new prometheus --scopes metrics

Covered: constant-time comparison, no key at rest, nobody but loopback without keys.
Not covered: ends of answers under way when their key is revoked, quotas, brute force
(2**256 is enough).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from serve_app.config import GatewayConfig
from serve_app.errors import PermissionDenied, Unauthenticated
from serve_app.types import Caller, Scope

logger = logging.getLogger(__name__)

ENVIRONMENT: Final = "SERVE_APP_API_KEYS"
ENVIRONMENT_FILE: Final = "SERVE_APP_API_KEYS_FILE"
PREFIX: Final = "sk-"
MAX_KEY_CHARS: Final = 256

_LINE = re.compile(r"(?P<name>[A-Za-z0-9._-]{1,64}):(?P<scopes>[a-z,]+):(?P<digest>[0-9a-f]{64})")


class KeyFileError(ValueError):
    """A line of the key file or variable that is not understood; names the line, not its content."""


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    caller: Caller


class KeyFile:
    """The keys of a file, which may change while the server runs."""

    CHECK_S: ClassVar[float] = 1.0  # between two looks at the file

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises KeyFileError or OSError, also for a file without any key."""
        self.refused = False  # the file's newest content is not understood, and not in force
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        self._state = self._stat()
        self._keys = self._read()
        if not self._keys:
            raise KeyFileError("the key file holds no key")

    def keys(self) -> list[_Key]:
        """Those of the file as it is now, or as it last was understood."""
        now = self._clock()
        if now - self._looked_at >= self.CHECK_S:
            self._looked_at = now
            self._look()
        return self._keys

    def _look(self) -> None:
        try:
            state = self._stat()
            if state == self._state:
                return
            keys = self._read()
        except (KeyFileError, OSError, UnicodeDecodeError) as error:
            if not self.refused:
                logger.error("the changed key file is not in force, the old keys are: %s", error)
            self.refused = True
            return
        self._state, self._keys, self.refused = state, keys, False
        logger.info("the key file has changed: %d keys are in force", len(keys))

    def _stat(self) -> tuple[int, int, int]:
        """What differs between two contents. Follows links: Kubernetes swaps one when a secret changes."""
        found = self._path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> list[_Key]:
        return _parse(self._path.read_text(encoding="utf-8").splitlines(), "the key file, line")


class StaticAccounts:
    """The keys an operator wrote down, in a file and in the environment."""

    def __init__(
        self,
        config: GatewayConfig,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises KeyFileError or OSError: a server must not start open because a file is broken."""
        path = config.keys_file or (Path(named) if (named := environ.get(ENVIRONMENT_FILE)) else None)
        self._file = None if path is None else KeyFile(path, clock)
        self._of_environment = _parse(environ.get(ENVIRONMENT, "").split(), f"{ENVIRONMENT}, entry")
        self._open_to_all = config.allow_remote_without_keys
        # Without keys there is one tenant; its salt only has to differ from every key's.
        self._anonymous = Caller(
            key_id="anonymous", scopes=frozenset(Scope), salt=secrets.token_hex(16), anonymous=True
        )

    @property
    def has_keys(self) -> bool:
        """Whether callers need one. A file says so even when it no longer holds any."""
        return self._file is not None or bool(self._of_environment)

    @property
    def refused(self) -> bool:
        """Whether a changed key file is not in force, since it is not understood."""
        return self._file is not None and self._file.refused

    def authenticate(self, authorization: str | None, peer: str | None) -> Caller:
        """See `api.backend.Accounts`. Without keys, peers beyond loopback are refused."""
        if not self.has_keys:
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
        of_file = [] if self._file is None else self._file.keys()
        for known in (*of_file, *self._of_environment):  # all of them, so that time tells nothing
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
