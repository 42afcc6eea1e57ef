"""The secret that seals sessions: from the environment, or made once in the state directory.

All gateways of one machine share the file. Gateways on several machines need the variable.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from serve_app.config import state_dir

logger = logging.getLogger(__name__)

VARIABLE: Final = "SERVE_APP_CONSOLE_SECRET"
FILE: Final = "console-secret"
MIN_CHARS: Final = 32  # 16 bytes in hexadecimal


def check_secret(environ: Mapping[str, str]) -> None:
    """Raises ValueError for a secret that could be guessed."""
    given = environ.get(VARIABLE)
    if given is not None and len(given) < MIN_CHARS:
        raise ValueError(
            f"{VARIABLE} must have at least {MIN_CHARS} characters: `openssl rand -hex 32` makes one"
        )


def load_secret(environ: Mapping[str, str]) -> str:
    """The secret. Where the state directory cannot be written, one that ends with this process."""
    check_secret(environ)
    if given := environ.get(VARIABLE):
        return given
    path = state_dir(environ) / FILE
    try:
        kept = _read_or_make(path)
    except OSError as error:
        logger.warning(
            "the console's secret cannot be kept in the state directory (%s): sessions end with this "
            "gateway; set %s",
            error.strerror,
            VARIABLE,
        )
        return secrets.token_hex(32)
    if len(kept) < MIN_CHARS:
        logger.warning("the console's secret %s is cut short; sessions end with this gateway", path)
        return secrets.token_hex(32)
    return kept


def _read_or_make(path: Path) -> str:
    """The first of several gateways makes the file, whole from its first moment; all read it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass  # another gateway was faster: its secret counts
        finally:
            fresh.unlink()
    return path.read_text().strip()
