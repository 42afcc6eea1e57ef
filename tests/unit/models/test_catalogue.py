"""Names: applications that Serve accepts, and back again; demo models that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.models import catalogue
from serve_app.models.catalogue import app_name, demo_folder, demo_names, parse_app_name
from serve_app.models.errors import ModelLoadError

names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)


@given(model=names, version=st.one_of(st.just(""), names))
def test_an_application_name_is_safe_and_reversible(model: str, version: str) -> None:
    app = app_name(model, version)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", app)
    assert parse_app_name(app) == (model, version)


def test_similar_names_stay_apart() -> None:
    pairs = [("a/b", ""), ("a_b", ""), ("a", "b"), ("a_v_b", ""), ("a-b", ""), ("A/b", ""), ("a_2fb", "")]
    assert len({app_name(*pair) for pair in pairs}) == len(pairs)


def test_no_model_takes_the_name_of_another_application() -> None:
    assert app_name("system") != "system"


@pytest.mark.parametrize("app", ["system", "model-", "model-a b", "model-a_zz", "model-_2d", "model-_ff", ""])
def test_an_application_of_something_else_is_no_model(app: str) -> None:
    with pytest.raises(ValueError):
        parse_app_name(app)


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
