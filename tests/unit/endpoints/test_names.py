"""Names of applications: what Serve accepts, one for each model and version."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from hypothesis import given
from hypothesis import strategies as st

from serve_app.endpoints.rules import app_name

names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)


def read_back(app: str) -> tuple[str, ...]:
    """The (model, version) of an application's name."""
    parts = app.removeprefix("model-").partition("_v_")[::2]
    return tuple(unquote_to_bytes(part.replace("_", "%")).decode() for part in parts)


@given(model=names, version=st.one_of(st.just(""), names))
def test_an_application_name_is_safe_and_reversible(model: str, version: str) -> None:
    app = app_name(model, version)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", app)
    assert read_back(app) == (model, version)


def test_similar_names_stay_apart() -> None:
    pairs = [("a/b", ""), ("a_b", ""), ("a", "b"), ("a_v_b", ""), ("a-b", ""), ("A/b", ""), ("a_2fb", "")]
    assert len({app_name(*pair) for pair in pairs}) == len(pairs)


def test_no_model_takes_the_name_of_another_application() -> None:
    assert app_name("system") != "system"
