"""API keys in their static form: hashes in a file or in the environment.

One key per line (separated by blanks in the environment variable); `#` starts a comment:

    name:scope,scope:sha256

`name` is 1-64 characters of [A-Za-z0-9._-] and appears in logs, each scope is a `types.Scope`, and `sha256`
is the lower-case hex digest of the whole key. The file is named by `keys_file` or SERVE_APP_API_KEYS_FILE,
the variable is SERVE_APP_API_KEYS; both may be used.

The file is read again within KeyFile.CHECK_S seconds of a change. If the file then cannot be read or parsed,
nothing changes and the fault is logged; a file without any key locks out every caller.

    $ serve-app keys new alice
    $ serve-app keys new prometheus --scopes metrics
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from serve_app.accounts.keys import EXPECTED, NAME, KeyFileError, salt_of
from serve_app.types import Caller, Scope

logger = logging.getLogger(__name__)

ENVIRONMENT: Final = "SERVE_APP_API_KEYS"
ENVIRONMENT_FILE: Final = "SERVE_APP_API_KEYS_FILE"

_LINE = re.compile(rf"(?P<name>{NAME.pattern}):(?P<scopes>[a-z,]+):(?P<digest>[0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True)
class StaticKey:
    """One parsed line."""

    digest: bytes
    caller: Caller


class KeyFile:
    """The keys of a file, which may change while the server runs."""

    CHECK_S: ClassVar[float] = 1.0  # between two checks of the file

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError, or KeyFileError, which also means that the file has no key."""
        self.refused = False  # the file's newest content cannot be parsed, and is not in force
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        self._state = self._stat()
        self._keys = self._read()
        if not self._keys:
            raise KeyFileError("the key file holds no key")

    def keys(self) -> dict[bytes, StaticKey]:
        """The keys by digest, from the current file or from the last one that could be parsed."""
        now = self._clock()
        if now - self._looked_at >= self.CHECK_S:
            self._looked_at = now
            self._look()
        return self._keys

    def _look(self) -> None:
        try:
            state = self._stat()
            if state == self._state:
                self.refused = False  # the file was away, and is back
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
        """A value that changes with the content. Follows links: Kubernetes redirects them to new secrets."""
        found = self._path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> dict[bytes, StaticKey]:
        return parse_keys(self._path.read_text(encoding="utf-8").splitlines(), "the key file, line")


def parse_keys(lines: Iterable[str], where: str) -> dict[bytes, StaticKey]:
    """The keys of `lines` by digest. Raises KeyFileError with the line's number after `where`."""
    keys: dict[bytes, StaticKey] = {}
    for number, raw in enumerate(lines, start=1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or not set(match["scopes"].split(",")) <= set(Scope):
            raise KeyFileError(f"{where} {number}: {EXPECTED}")
        name, digest = match["name"], bytes.fromhex(match["digest"])
        scopes = frozenset(Scope(scope) for scope in match["scopes"].split(","))
        caller = Caller(key_id=name, scopes=scopes, salt=salt_of(digest, name))
        keys[digest] = StaticKey(digest, caller)
    return keys
