"""Demo models that exist, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.models import catalogue
from serve_app.models.catalogue import demo_folder, demo_names
from serve_app.models.errors import ModelLoadError


def test_demo_models_are_found_by_their_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text("{}")
    (tmp_path / "recipe").mkdir()
    monkeypatch.setattr(catalogue, "DEMO_FOLDER", tmp_path)
    assert demo_names() == ("small",)
    assert demo_folder("small") == tmp_path / "small"
    for wrong in ("large", "../small", ""):
        with pytest.raises(ModelLoadError, match="there is: small"):
            demo_folder(wrong)
