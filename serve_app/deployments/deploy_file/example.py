"""Deploy files to begin with, wherever this package is: the wheel has a copy of `deploy/`.

Knows paths, and not what the files say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parents[2]
_FOLDERS: Final = (_PACKAGE / "deploy_files", _PACKAGE.parent / "deploy")  # of a wheel; of a source tree


def example(name: str = "local.yaml") -> Path:
    """The deploy file of this name, below the working directory as a relative path.

    `local.yaml` serves the bundled demo models on one machine.
    """
    path = next((folder / name for folder in _FOLDERS if folder.is_dir()), Path("deploy") / name)
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
