"""Hub models: a pinned commit, safetensors only, and an error that says the next step. No network."""

from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from serve_app.models import hub
from serve_app.models.errors import ModelLoadError
from serve_app.models.hub import _http_error
from tests.support.hub_server import COMMIT, hub_server

FILES = {
    "config.json": 10,
    "model-00001-of-00002.safetensors": 2**30,
    "model-00002-of-00002.safetensors": 2**29,
    "consolidated.safetensors": 2**30,
    "original/weights.safetensors": 5,
    "pytorch_model.bin": 7,
    "modeling_x.py": 3,
}


class FakeHub:
    """Stands in for huggingface_hub: one repository, an optional error, and an optional cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error: Exception | None = None
        self.files = dict(FILES)
        self.cached: Path | None = None
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def model_info(self, repo: str, **options: Any) -> Any:
        self.calls.append(("info", options))
        if self.error is not None:
            raise self.error
        siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in self.files.items()]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    def snapshot_download(self, repo: str, **options: Any) -> str:
        self.calls.append(("snapshot", options))
        if not options.get("local_files_only"):
            return str(self.folder)
        if self.cached is None:
            raise LocalEntryNotFoundError("nothing cached")
        return str(self.cached)

    def hf_hub_download(self, repo: str, name: str, **options: Any) -> str:
        self.calls.append((name, options))
        return str(self.folder / name)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    made = FakeHub(tmp_path / "snapshots" / COMMIT)
    monkeypatch.setattr(hub, "HfApi", lambda: made)
    monkeypatch.setattr(hub, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(hub, "hf_hub_download", made.hf_hub_download)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return made


def response_error(kind: type[Any]) -> Exception:
    http = importlib.import_module(_http_error().__module__.partition(".")[0])  # the hub's own client
    request = http.Request("GET", "https://hub.test")
    error: Exception = kind("no", response=http.Response(404, request=request))
    return error


def in_cache(fake: FakeHub, tmp_path: Path) -> Path:
    fake.cached = tmp_path / COMMIT
    fake.cached.mkdir()
    (fake.cached / "model.safetensors").write_bytes(b"")
    return fake.cached


def test_a_branch_is_pinned_to_its_commit_and_only_safe_files_are_fetched(fake: FakeHub) -> None:
    lines: list[str] = []
    assert hub.fetch("owner/model", "main", lines.append) == (fake.folder, COMMIT)
    (_, info), (_, snapshot), *weights = fake.calls
    assert info["revision"] == "main"
    assert snapshot == {"revision": COMMIT, "allow_patterns": ["*.json", "*.txt", "*.jinja", "*.model"]}
    assert [name for name, _ in weights] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert all(options == {"revision": COMMIT} for _, options in weights)
    assert COMMIT in lines[0]
    assert "1.50 GiB" in lines[0]
    assert "file 2 of 2" in lines[-1]


def test_a_repository_without_safetensors_is_refused_before_any_download(fake: FakeHub) -> None:
    fake.files = {"config.json": 1, "pytorch_model.bin": 7}
    with pytest.raises(
        ModelLoadError, match=r"no \.safetensors files \(it has: config\.json, pytorch_model\.bin"
    ):
        hub.fetch("owner/model", None, print)
    assert len(fake.calls) == 1


@pytest.mark.parametrize(
    ("error", "next_step"),
    [
        (response_error(GatedRepoError), "accept its licence.*HF_TOKEN"),
        (response_error(RepositoryNotFoundError), "check `source`, or set HF_TOKEN"),
        (response_error(RevisionNotFoundError), "check `revision`"),
        (HFValidationError("bad"), "neither a local folder nor a hub id"),
        (_http_error()("no route"), "check the network"),
        (TimeoutError(), "check the network"),
        (OSError(errno.ENOSPC, "no space"), "the disk is full"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_went_wrong_comes_with_the_next_step(fake: FakeHub, error: Exception, next_step: str) -> None:
    fake.error = error
    with pytest.raises(ModelLoadError, match=next_step):
        hub.fetch("owner/model", "main", print)


def test_an_unreachable_hub_is_replaced_by_the_cache(fake: FakeHub, tmp_path: Path) -> None:
    fake.error = _http_error()("no route")
    folder = in_cache(fake, tmp_path)
    lines: list[str] = []
    assert hub.fetch("owner/model", None, lines.append) == (folder, COMMIT)
    assert "could not be reached" in lines[-1]


def test_a_cache_with_half_a_model_is_not_used(fake: FakeHub, tmp_path: Path) -> None:
    fake.error = _http_error()("no route")
    folder = in_cache(fake, tmp_path)
    index = {"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="does not hold it"):
        hub.fetch("owner/model", None, print)


def test_a_pinned_commit_in_the_cache_needs_no_network(fake: FakeHub, tmp_path: Path) -> None:
    folder = in_cache(fake, tmp_path)
    assert hub.fetch("owner/model", COMMIT, print) == (folder, COMMIT)
    assert [name for name, _ in fake.calls] == ["snapshot"]


def test_offline_mode_never_asks_the_hub(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="HF_HUB_OFFLINE"):
        hub.fetch("owner/model", None, print)
    folder = in_cache(fake, tmp_path)
    assert hub.fetch("owner/model", None, print) == (folder, COMMIT)
    assert all(name == "snapshot" for name, _ in fake.calls)


@pytest.mark.parametrize("revision", [None, "v1/best", COMMIT])
def test_what_was_downloaded_is_found_again_without_the_hub(tmp_path: Path, revision: str | None) -> None:
    """The real library, and a hub that ends after the first start."""
    script = (
        "import sys\n"
        "from serve_app.models import hub\n"
        f"folder, commit = hub.fetch('org/model', {revision!r}, print)\n"
        f"assert hub.cached('org/model', {revision!r}) == folder\n"
        "print('found', commit, sorted(path.name for path in folder.iterdir()))\n"
    )
    files = {"config.json": b"{}", "model.safetensors": b"abc", "README.md": b"#", ".gitattributes": b""}
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)

    def started(**more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    with hub_server("org/model", files) as address:
        first = started(HF_ENDPOINT=address)
    assert first == f"found {COMMIT} ['config.json', 'model.safetensors']"
    assert started(HF_ENDPOINT="http://127.0.0.1:9") == first
    assert started(HF_HUB_OFFLINE="1") == first


def test_a_refused_connection_is_told_as_an_unreachable_hub(tmp_path: Path) -> None:
    """The real library on a closed port: whatever its HTTP client raises."""
    script = (
        "from serve_app.models import hub\n"
        "from serve_app.models.errors import ModelLoadError\n"
        "try:\n    hub.fetch('org/model', None, print)\n"
        "except ModelLoadError as error:\n    print('told:', error)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "told: " in done.stdout
    assert "reach" in done.stdout
