"""The demo models that ship with the package, by name. Only paths are computed; nothing is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from serve_app.models.errors import ModelLoadError

DEMO_PREFIX: Final = "demo:"
DEMO_FOLDER: Final = Path(__file__).parent / "demo"


def demo_names() -> tuple[str, ...]:
    """The names of the demo models that are installed, sorted."""
    return tuple(sorted(path.parent.name for path in DEMO_FOLDER.glob("*/config.json")))


def demo_folder(name: str) -> Path:
    """The folder of the demo model `name`. Raises ModelLoadError with the names of all demo models if there
    is no such model."""
    if name not in demo_names():
        known = ", ".join(demo_names()) or "none"
        raise ModelLoadError(
            f"there is no demo model {name!r} (there is: {known}); "
            "set `source` to a local folder or a hub id for any other model"
        )
    return DEMO_FOLDER / name
