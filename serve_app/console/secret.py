"""The secret that seals sessions: from the environment, or made once in the state directory.

All gateways of one machine share the file. Gateways on several machines need the variable.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Final

from serve_app.config import state_dir
from serve_app.config.secret_file import secret_file

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
    """The secret; if the state directory is not writable, a new one for this process alone."""
    check_secret(environ)
    if given := environ.get(VARIABLE):
        return given
    path = state_dir(environ) / FILE
    try:
        kept = secret_file(path).read_text().strip()
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
