"""Finds this package's example deploy files wherever it is installed: the wheel includes `deploy/`.

Deals only with paths, not with the content of the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[2]
_FOLDERS: Final = (_PACKAGE / "deploy_files", _PACKAGE.parent / "deploy")  # of a wheel; of a source tree


def example(name: str = "local.yaml") -> Path:
    """The path of the deploy file of this name; relative if it is below the working directory.

    `local.yaml` serves the bundled demo models on one machine.
    """
    path = next((folder / name for folder in _FOLDERS if folder.is_dir()), Path("deploy") / name)
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
