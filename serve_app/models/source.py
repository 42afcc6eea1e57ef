"""A model's source in the settings -> a folder in transformers' layout on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from serve_app.models import hub
from serve_app.models.catalogue import DEMO_PREFIX, demo_folder
from serve_app.models.errors import ModelLoadError
from serve_app.models.gguf.choice import SUFFIX, in_folder, on_hub, parts_of


def locate(
    source: str, revision: str | None, progress: Callable[[str], None], *, weights: bool = True
) -> tuple[Path, str | None]:
    """The folder of `source` and, from the hub, its commit. Downloads what is missing, weights if wanted.

    For a GGUF file, on this machine or on the hub, it is a folder that describes the file.
    """
    if source.startswith(DEMO_PREFIX):
        return demo_folder(source.removeprefix(DEMO_PREFIX)), None
    if files := gguf_files(source):
        return _describing(files, progress), None
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder.resolve(), None
    if folder.is_file():
        raise ModelLoadError(
            f"{source!r} is a file; `source` is a GGUF file, or the folder of a model with config.json and "
            "safetensors"
        )
    if (named := on_hub(source)) is not None:
        repo, wanted = named
        snapshot, commit = hub.fetch_gguf(repo, wanted, revision, progress)
        return _describing(hub.gguf_in(snapshot, wanted, repo), progress), commit
    if source.startswith((".", "/", "~", "\\")) or source.count("/") > 1:
        raise ModelLoadError(f"there is no folder {source!r}: check `source` of the model")
    fetch = hub.fetch if weights else hub.fetch_shape
    return fetch(source, revision, progress)


def gguf_files(source: str) -> list[Path]:
    """The files of a model in GGUF on this machine; empty if `source` is none.

    Raises ModelLoadError if a part is missing, or if a folder has several models.
    """
    path = Path(source).expanduser()
    if path.suffix == SUFFIX and path.is_file():
        return parts_of(path.absolute())
    if path.is_dir() and not any(path.glob("*.safetensors")):
        return in_folder(path.absolute())
    return []


def _describing(files: Sequence[Path], progress: Callable[[str], None]) -> Path:
    from serve_app.models.gguf.folder import folder_of  # torch is not needed, but a tokenizer's library

    return folder_of(files, progress)
