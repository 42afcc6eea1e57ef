"""Names of applications: what Serve accepts, and back again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.endpoints.names import app_name, parse_app_name

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
