"""How commands take files from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

DEPLOY_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def read_text(path: Path) -> str:
    """The text of a file that the user named; a ClickException says why it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise click.FileError(str(path), error.strerror) from error
    except UnicodeDecodeError as error:
        raise click.FileError(str(path), "it is not UTF-8 text") from error
