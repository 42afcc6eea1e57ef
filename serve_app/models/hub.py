"""Files of a model from the Hugging Face hub: a pinned commit, safetensors and text files only.

`HF_TOKEN` gives access to gated models, `HF_HUB_OFFLINE=1` forbids network access, and `HF_HOME` sets the
cache's folder; huggingface_hub itself reads all three. Nothing that is downloaded is executed.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from serve_app.models.errors import ModelLoadError
from serve_app.models.gguf.choice import SUFFIX, chosen, models_of, on_hub, parts_of

TEXT_PATTERNS: Final = ("*.json", "*.txt", "*.jinja", "*.model")
SHAPE_PATTERNS: Final = ("config.json", "hf_quant_config.json", "modules.json", "*.safetensors.index.json")
WEIGHTS_SUFFIX: Final = ".safetensors"

Progress: TypeAlias = Callable[[str], None]
Found: TypeAlias = tuple[Path, str]  # a folder of the cache, and its commit
# (repository, revision, the hub's answer, progress) -> the files; and the same without the hub's answer.
Download: TypeAlias = Callable[[str, str | None, Any, Progress], Found]
LookUp: TypeAlias = Callable[[str, str | None, Progress], Found]

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TIMEOUT_S: Final = 20.0  # for one answer of the hub's API; files have huggingface_hub's own


def fetch(repo: str, revision: str | None, progress: Progress) -> Found:
    """Download `repo` into the local cache; returns (folder, commit).

    A branch or tag is first resolved to its commit, and only that commit is read. If the hub cannot be
    reached, the files that are already in the cache are used.
    Raises ModelLoadError, whose message says whether the repository is missing, gated or unreachable.
    """
    return _answered(repo, revision, progress, _download, _cached)


def _answered(
    repo: str, revision: str | None, progress: Progress, download: Download, look_up: LookUp
) -> Found:
    """The files that the hub lists, as `download` fetches them, or else those that `look_up` finds in the
    local cache."""
    if constants.HF_HUB_OFFLINE or (revision and _COMMIT.fullmatch(revision)):
        try:
            return look_up(repo, revision, progress)
        except LocalEntryNotFoundError as error:
            if constants.HF_HUB_OFFLINE:
                raise ModelLoadError(
                    f"model {repo!r} is not in the local cache and HF_HUB_OFFLINE forbids the network; "
                    "unset it for the first start, or set `source` to a local folder"
                ) from error
        except HFValidationError as error:
            raise _not_an_id(repo) from error
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
        return download(repo, revision, info, progress)
    except GatedRepoError as error:  # before its base class RepositoryNotFoundError
        raise ModelLoadError(
            f"model {repo!r} is gated: accept its licence on https://huggingface.co/{repo} and set HF_TOKEN "
            "to a token of that account"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"the hub has no model {repo!r}, or it is private: check `source`, or set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelLoadError(f"model {repo!r} has no revision {revision!r}: check `revision`") from error
    except HFValidationError as error:
        raise _not_an_id(repo) from error
    except (HfHubHTTPError, OSError, ConnectionError, TimeoutError, _http_error()) as error:
        return _fall_back(repo, revision, progress, look_up, error)


def _download(repo: str, revision: str | None, info: Any, progress: Progress) -> Found:
    commit = str(info.sha)
    sizes = _weights_of(repo, info)
    progress(f"{repo} at commit {commit}: {len(sizes)} weight files, {sum(sizes.values()) / 2**30:.2f} GiB")
    folder = Path(snapshot_download(repo, revision=commit, allow_patterns=list(TEXT_PATTERNS)))
    _download_files(repo, commit, sizes, progress)
    _note(folder, revision or constants.DEFAULT_REVISION, commit)
    return folder, commit


def _download_files(repo: str, commit: str, sizes: Mapping[str, int], progress: Progress) -> None:
    for number, (name, size) in enumerate(sizes.items(), 1):
        progress(f"{repo}: file {number} of {len(sizes)}, {name}, {size / 2**30:.2f} GiB")
        hf_hub_download(repo, name, revision=commit)


def _weights_of(repo: str, info: Any) -> dict[str, int]:
    """The sizes in bytes of the weights, by their files' names. Raises ModelLoadError if there are none."""
    sizes = {f.rfilename: int(f.size or 0) for f in info.siblings if "/" not in f.rfilename}
    weights = wanted_weights(list(sizes))
    if not weights and (models := models_of(file.rfilename for file in info.siblings)):
        raise ModelLoadError(
            f"model {repo!r} at {info.sha} has GGUF files; name one of them as `source`: "
            f"{', '.join(f'{repo}/{name}' for name in models)}"
        )
    if not weights:
        raise ModelLoadError(
            f"model {repo!r} at {info.sha} has no {WEIGHTS_SUFFIX} files (it has: "
            f"{', '.join(sorted(sizes))}); choose a repository or revision with safetensors weights"
        )
    return {name: sizes[name] for name in weights}


def _note(snapshot: Path, revision: str, commit: str) -> None:
    """Make the cache find `snapshot` under the requested name, because only its commit was downloaded."""
    if revision != commit:
        ref = snapshot.parents[1] / "refs" / revision
        with suppress(OSError):  # then it is found only with the hub's answer
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit, "utf-8")


def wanted_weights(names: list[str]) -> list[str]:
    """The top-level safetensors files of `names`, without a second copy in another layout."""
    found = sorted(name for name in names if name.endswith(WEIGHTS_SUFFIX) and "/" not in name)
    return [name for name in found if not name.startswith("consolidated")] or found


def fetch_shape(repo: str, revision: str | None, progress: Progress) -> Found:
    """Like `fetch`, but downloads only the files that describe the model, not weights or tokenizer."""
    return _answered(repo, revision, progress, _download_shape, _cached_shape)


def _download_shape(repo: str, revision: str | None, info: Any, progress: Progress) -> Found:
    commit = str(info.sha)
    _weights_of(repo, info)
    progress(f"{repo} at commit {commit}")
    return Path(snapshot_download(repo, revision=commit, allow_patterns=list(SHAPE_PATTERNS))), commit


def _cached_shape(repo: str, revision: str | None, progress: Progress) -> Found:
    folder = Path(
        snapshot_download(repo, revision=revision, allow_patterns=list(SHAPE_PATTERNS), local_files_only=True)
    )
    if not (folder / "config.json").is_file():
        raise LocalEntryNotFoundError(f"the configuration of {repo} is not in the cache")
    progress(f"{repo} at commit {folder.name}, from the local cache")
    return folder, folder.name


def fetch_gguf(repo: str, wanted: str, revision: str | None, progress: Progress) -> Found:
    """Like `fetch`, but of all weights only the GGUF file that is `wanted`, or its parts."""
    return _answered(
        repo,
        revision,
        progress,
        partial(_download_gguf, wanted=wanted),
        partial(_cached_gguf, wanted=wanted),
    )


def _download_gguf(repo: str, revision: str | None, info: Any, progress: Progress, wanted: str) -> Found:
    commit = str(info.sha)
    sizes = {file.rfilename: int(file.size or 0) for file in info.siblings}
    files = chosen(sizes, wanted, f"model {repo!r} at {commit}")
    folder = Path(snapshot_download(repo, revision=commit, allow_patterns=list(TEXT_PATTERNS)))
    _download_files(repo, commit, {name: sizes[name] for name in files}, progress)
    _note(folder, revision or constants.DEFAULT_REVISION, commit)
    return folder, commit


def _cached_gguf(repo: str, revision: str | None, progress: Progress, wanted: str) -> Found:
    folder = Path(
        snapshot_download(repo, revision=revision, allow_patterns=list(TEXT_PATTERNS), local_files_only=True)
    )
    try:
        gguf_in(folder, wanted, repo)
    except ModelLoadError as error:
        raise LocalEntryNotFoundError(f"{wanted} of {repo} is not in the cache") from error
    progress(f"{repo} at commit {folder.name}, from the local cache")
    return folder, folder.name


def gguf_in(snapshot: Path, wanted: str, repo: str) -> list[Path]:
    """The files of a model in GGUF in a folder of the cache. Raises ModelLoadError if one is missing."""
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob(f"*{SUFFIX}")]
    return parts_of(snapshot / chosen(names, wanted, f"the cache of {repo!r}")[0])


def cached_gguf(source: str, revision: str | None) -> list[Path]:
    """The files of a model in GGUF on the hub, if they are in the local cache. Uses no network."""
    named = on_hub(source)
    if named is None:
        return []
    repo, wanted = named
    try:
        return gguf_in(_cached_gguf(repo, revision, lambda line: None, wanted)[0], wanted, repo)
    except (LocalEntryNotFoundError, HFValidationError, OSError, ValueError):
        return []


def cached(repo: str, revision: str | None) -> Path | None:
    """The folder of `repo` in the local cache; None if it is incomplete. Uses no network."""
    try:
        return _cached(repo, revision, lambda line: None)[0]
    except (LocalEntryNotFoundError, HFValidationError, OSError, ValueError, KeyError):
        return None


def _cached(repo: str, revision: str | None, progress: Progress) -> Found:
    # Only these were downloaded. The cache lists all files of the repository, and would miss the others.
    patterns = list(TEXT_PATTERNS)
    folder = Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, local_files_only=True))
    index = folder / "model.safetensors.index.json"
    wanted = set(json.loads(index.read_text("utf-8"))["weight_map"].values()) if index.is_file() else set()
    present = {path.name for path in folder.glob("*" + WEIGHTS_SUFFIX)}
    if not present or wanted - present:  # a download that was interrupted
        raise LocalEntryNotFoundError(f"the weights of {repo} are not all in the cache")
    progress(f"{repo} at commit {folder.name}, from the local cache")
    return folder, folder.name


def _fall_back(
    repo: str, revision: str | None, progress: Progress, look_up: LookUp, error: BaseException
) -> Found:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        raise ModelLoadError(
            f"the disk is full: model {repo!r} could not be stored; make room, or set HF_HOME to another disk"
        ) from error
    try:
        found = look_up(repo, revision, progress)
    except LocalEntryNotFoundError:
        raise ModelLoadError(
            f"the hub could not be reached for model {repo!r} ({type(error).__name__}) and the local cache "
            "does not hold it; check the network and HF_ENDPOINT, or set `source` to a local folder"
        ) from error
    progress(f"{repo}: the hub could not be reached, going on with the cache")
    return found


def _not_an_id(repo: str) -> ModelLoadError:
    return ModelLoadError(
        f"{repo!r} is neither a local folder nor a hub id (`owner/name`): check `source` of the model"
    )


def _http_error() -> type[Exception]:
    """The base error of the HTTP library under huggingface_hub, whichever that is in this version."""
    bases = (base for base in HfHubHTTPError.__mro__ if base.__name__ in ("HTTPError", "RequestException"))
    return next((base for base in bases if issubclass(base, Exception)), OSError)
