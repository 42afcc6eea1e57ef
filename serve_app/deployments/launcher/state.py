"""The folders that outlive a server; they are checked before the server starts."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from serve_app.config import default_usage_dir, state_dir
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.gateways import system_args

STATE_ADVICE: Final = "set XDG_STATE_HOME to a folder that can be written"
USAGE_ADVICE: Final = "set the gateway's usage_dir to a folder that can be written"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})  # a disk may have room again later


def check_writable(config: dict[str, Any]) -> None:
    """Raises CannotServe if the server that `config` describes could not save its state or its usage."""
    usage = system_args(config).get("usage_dir")
    with kept(STATE_ADVICE):
        _try(state_dir())
    with kept(USAGE_ADVICE):
        _try(Path(usage) if usage else default_usage_dir())


@contextlib.contextmanager
def kept(advice: str) -> Iterator[None]:
    """Turns an OSError in the block into a CannotServe that names the file. Errors for a full disk are
    ignored."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            what = f"{error.filename}: {error.strerror}"
            raise CannotServe(f"{what}. Nothing can be kept there; {advice}") from error


def _try(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
