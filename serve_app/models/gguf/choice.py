"""Which files of a folder or a repository are a model in GGUF, by their names alone.

A source on the hub is `owner/name:Q4_K_M`, as llama.cpp and vLLM have it, or `owner/name/file.gguf`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from serve_app.models.errors import ModelLoadError

SUFFIX: Final = ".gguf"
_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_BESIDE: Final = "mmproj"  # of parts that read images
_ON_HUB: Final = re.compile(r"([^/:]+/[^/:]+)(?::([^/:]+)|/(.+\.gguf))")


def on_hub(source: str) -> tuple[str, str] | None:
    """The repository, and the file or the type of weights that is wanted of it; None for another source."""
    found = _ON_HUB.fullmatch(source)
    if found is None or source.startswith((".", "~")):
        return None
    return found[1], found[2] or found[3]


def models_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of the files of each model, by the first of them; a model may be split into parts."""
    models: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX) and not Path(name).name.startswith(_BESIDE):
            part = _PART.fullmatch(name)
            models.setdefault(part[1] if part else name, []).append(name)
    return {parts[0]: parts for parts in models.values()}


def chosen(names: Iterable[str], wanted: str, where: str) -> list[str]:
    """The files of the one model that is `wanted`: the name of a file, or a type such as Q4_K_M in it.

    Raises ModelLoadError if there is no such model, or several.
    """
    models = models_of(names)
    exact = [parts for parts in models.values() if wanted in parts]
    word = re.compile(rf"(?:^|[-._/]){re.escape(wanted)}(?=$|[-./])", re.IGNORECASE)
    found = exact or [parts for first, parts in models.items() if word.search(first.removesuffix(SUFFIX))]
    if len(found) == 1:
        return found[0]
    reason = f"has no GGUF file {wanted!r}" if not found else f"has several GGUF files for {wanted!r}"
    listed = ", ".join(parts[0] for parts in (found or models.values())) or "none"
    raise ModelLoadError(f"{where} {reason}; name one of these as `source`: {listed}")


def in_folder(folder: Path) -> list[Path]:
    """The files of the one model in a folder without safetensors; empty if it has none.

    Raises ModelLoadError if there are several.
    """
    models = models_of(path.name for path in folder.glob(f"*{SUFFIX}"))
    if len(models) > 1:
        raise ModelLoadError(
            f"{folder} holds {len(models)} models in GGUF; name one of them as `source`: {', '.join(models)}"
        )
    return [folder / name for parts in models.values() for name in parts]


def parts_of(path: Path) -> list[Path]:
    """All parts of the model of which `path` is a file. Raises ModelLoadError if one is missing."""
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    return complete(
        [path.parent / f"{part[1]}-{number:05}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1)]
    )


def complete(paths: Sequence[Path]) -> list[Path]:
    """`paths`. Raises ModelLoadError if one of them is missing."""
    for path in paths:
        if not path.is_file():
            raise ModelLoadError(
                f"{path} is missing, a part of a model in {len(paths)} files; fetch them all"
            )
    return list(paths)
