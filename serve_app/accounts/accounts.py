"""Identifies callers by the keys in the key file and the environment, and by keys that were made at run time.

Keys made at run time arrive in snapshots, and are checked in memory: no key, good or bad, is ever
looked up in a database. A key is found by its digest, and compared in constant time.

Covered: no key is stored, only loopback is served without keys, keys expire by the clock, and bad keys are
counted per address, in bounded memory. Not covered: answers that are running when their key is revoked;
clients behind the same proxy, whose bad keys are counted together.
"""

from __future__ import annotations

import base64
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from serve_app.accounts.bad_keys import BadKeys
from serve_app.accounts.key_file import ENVIRONMENT, ENVIRONMENT_FILE, KeyFile, StaticKey, parse_keys
from serve_app.accounts.keys import ANONYMOUS, MAX_KEY_CHARS, digest_of, salt_of
from serve_app.config import GatewayConfig
from serve_app.errors import PermissionDenied, QuotaExceeded, Unauthenticated, Unavailable
from serve_app.loopback import is_loopback
from serve_app.types import Caller, MonthlyBudget, Scope
from serve_app.types.control import KnownKey, Snapshot

BASIC_USER: Final = "token"
NOT_KNOWN: Final = "the API keys are not known yet, since the control plane has not answered; try again"
NOT_CONFIRMED: Final = (
    "the API key cannot be checked, since the control plane has not answered for too long; try again"
)
RETRY_S: Final = 2.0  # `Retry-After` while the keys of the control plane are not known


@dataclass(frozen=True, slots=True)
class _Known:
    """A key that was made at run time, and its caller."""

    key: KnownKey
    caller: Caller

    @property
    def digest(self) -> bytes:
        return self.key.digest

    def has_ended(self, now: float) -> bool:
        return self.key.expires is not None and now >= self.key.expires


class Accounts:
    """The callers of one gateway; an `api.backend.Accounts`."""

    def __init__(
        self,
        config: GatewayConfig,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        *,
        at_run_time: bool = False,
    ) -> None:
        """`at_run_time`: `take` may add keys. Until the first snapshot, no key is known to be bad.

        Raises KeyFileError or OSError: a server must not start open because a file is broken.
        """
        path = config.keys_file or (Path(named) if (named := environ.get(ENVIRONMENT_FILE)) else None)
        self._file = None if path is None else KeyFile(path, clock)
        self._of_environment = parse_keys(environ.get(ENVIRONMENT, "").split(), f"{ENVIRONMENT}, entry")
        self._now = now
        self.is_waiting = at_run_time  # for the first snapshot, which has the keys made at run time
        self.snapshot_age_s: Callable[[], float] = lambda: 0.0  # since the newest snapshot was confirmed
        self._max_age_s = config.control.max_snapshot_age_s
        self._had_keys = False  # made at run time: after the first such key, every caller needs one
        self._taken: dict[bytes, _Known] = {}
        self._bad = BadKeys(clock)
        self._open_to_all = config.allow_remote_without_keys
        # Without keys there is one tenant; its salt only has to differ from every key's.
        self._anonymous = Caller(
            key_id=ANONYMOUS, scopes=frozenset(Scope), salt=secrets.token_hex(16), anonymous=True
        )
        # A stranger on an open network must not be able to make the first key, and lock out all others.
        self._anonymous_remote = replace(self._anonymous, scopes=frozenset(Scope) - {Scope.MANAGE})

    @property
    def has_keys(self) -> bool:
        """Whether callers need a key: they do if there is a key file, even one that has become empty."""
        return self._file is not None or bool(self._of_environment) or self._had_keys

    @property
    def is_stale(self) -> bool:
        """Whether the snapshot is too old to be trusted: its keys are refused until it is confirmed again.

        Otherwise a gateway that is cut off would accept a revoked key without end.
        """
        return not self.is_waiting and self.snapshot_age_s() > self._max_age_s

    @property
    def refused(self) -> bool:
        """Whether the key file has changed but is not in force, because it cannot be parsed."""
        return self._file is not None and self._file.refused

    @property
    def bad_keys(self) -> int:
        """How many requests came with a key that does not exist, since the start."""
        return self._bad.total

    def take(self, snapshot: Snapshot) -> None:
        """Use the keys of `snapshot` from now on, in place of the previous ones."""
        before = self._taken
        self._taken = {
            key.digest: known
            if (known := before.get(key.digest)) is not None and known.key == key
            else _known(key)
            for key in snapshot.keys
        }
        for digest in self._taken.keys() - before.keys():
            self._bad.forgive(digest)
        self._had_keys = self._had_keys or bool(self._taken)
        self.is_waiting = False

    def declared(self) -> Iterable[Caller]:
        return [key.caller for key in self._static()]

    def is_declared(self, name: str) -> bool:
        """Whether `name` is the name of a key in the file or the environment, or of keyless callers."""
        return name == ANONYMOUS or any(key.caller.key_id == name for key in self._static())

    def authenticate(self, authorization: str | None, peer: str | None) -> Caller:
        """See `api.backend.Accounts`. If there are no keys, peers other than loopback are refused."""
        if not self.has_keys:
            return self._without_key(peer)
        if authorization is None:
            raise Unauthenticated("an API key is needed: send it as 'Authorization: Bearer sk-...'")
        digest = digest_of(_key_of(authorization))
        known = self._find(digest)
        # The time of a look-up by digest reveals nothing about a key; the comparison protects the
        # # digest itself.
        if known is None or not hmac.compare_digest(known.digest, digest):
            raise self._stranger(peer, digest)
        if isinstance(known, _Known):
            if self.is_stale:
                raise Unavailable(NOT_CONFIRMED, retry_after_s=RETRY_S)
            if known.has_ended(self._now()):
                raise Unauthenticated("the API key has expired; ask for a new one")
        return known.caller

    def _find(self, digest: bytes) -> StaticKey | _Known | None:
        of_file = None if self._file is None else self._file.keys().get(digest)
        return of_file or self._of_environment.get(digest) or self._taken.get(digest)

    def _static(self) -> Iterable[StaticKey]:
        if self._file is not None:
            yield from self._file.keys().values()
        yield from self._of_environment.values()

    def _without_key(self, peer: str | None) -> Caller:
        if self.is_waiting:
            raise Unavailable(NOT_KNOWN, retry_after_s=RETRY_S)
        if is_loopback(peer):
            return self._anonymous
        if self._open_to_all:
            return self._anonymous_remote
        raise PermissionDenied(
            "no API key is configured, so only this machine is served; configure API keys (keys_file or "
            f"{ENVIRONMENT}), or allow_remote_without_keys on a closed network"
        )

    def _stranger(self, peer: str | None, digest: bytes) -> Exception:
        if self.is_waiting:
            return Unavailable(NOT_KNOWN, retry_after_s=RETRY_S)
        if self.is_stale:  # the key may be newer than the snapshot
            return Unavailable(NOT_CONFIRMED, retry_after_s=RETRY_S)
        wait_s = self._bad.add(peer, digest)
        if wait_s is None:
            return Unauthenticated("the API key is not valid")
        return QuotaExceeded(
            "the API key is not valid, as many before it from this address", retry_after_s=wait_s
        )


def _key_of(authorization: str) -> str:
    """The key in the header Authorization: after Bearer, or as the password of the user `token`.

    Databricks' examples for curl send the key as a password. Raises Unauthenticated.
    """
    scheme, _, credentials = authorization.partition(" ")
    credentials = (
        credentials.strip() if len(credentials) <= 2 * MAX_KEY_CHARS else ""
    )  # base64 turns three bytes into four characters
    key = _password(credentials) if scheme.lower() == "basic" else credentials
    if scheme.lower() not in ("basic", "bearer") or not 0 < len(key) <= MAX_KEY_CHARS:
        raise Unauthenticated(
            "the Authorization header must be 'Bearer' and an API key, or 'Basic' with the user "
            f"{BASIC_USER!r} and an API key as password"
        )
    return key


def _password(credentials: str) -> str:
    """The password of Basic credentials; "" for another user or malformed credentials."""
    try:
        user, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except ValueError:
        return ""
    return password if user == BASIC_USER else ""


def _known(key: KnownKey) -> _Known:
    caller = Caller(
        key_id=key.name,
        scopes=frozenset(scope for scope in Scope if scope in key.scopes),
        salt=salt_of(key.digest, key.name),
        user=key.user,
        is_service_principal=key.is_service_principal,
        groups=frozenset(key.groups),
        endpoints=frozenset(key.endpoints),
        over_budget=key.over_budget,
        over_soft_budget=key.over_soft_budget,
        budget=None
        if key.budget is None
        else MonthlyBudget(most=key.budget, currency=key.currency, spent=key.spent, month=key.month),
        at_run_time=True,
    )
    return _Known(key, caller)
