"""The folders for data that outlives a server. Environment variables override a deploy file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

USAGE_DIR: Final = "SERVE_APP_USAGE_DIR"  # where a volume for all pods is mounted
DATABASE_URL: Final = "SERVE_APP_DATABASE_URL"  # of the control plane, with its password

DATABASE_FILE: Final = "control.db"


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of this user's servers, in `XDG_STATE_HOME` or ~/.local/state."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "serve-app"


def default_usage_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the usage journal, unless `usage_dir` names another."""
    given = environ.get(USAGE_DIR)
    return Path(given) if given else state_dir(environ) / "usage"


def database_folder(usage_dir: str | Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the control plane's database, unless a URL is given."""
    return Path(usage_dir or state_dir(environ)).absolute()


def database_url(
    given: str | None, usage_dir: str | Path | None, environ: Mapping[str, str] = os.environ
) -> str:
    """The control plane's database: from the environment, its settings (`given`), or a file of this user."""
    named = environ.get(DATABASE_URL) or given
    return named or f"sqlite:///{database_folder(usage_dir, environ) / DATABASE_FILE}"
