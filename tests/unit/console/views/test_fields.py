from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.console.forms import listed, number, words


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("0.05", 0.05),
        (".5", 0.5),
        ("", None),
        ("ten", "ten"),
        ("1e9", "1e9"),
        ("nan", "nan"),
        ("0x10", "0x10"),
        ("٣", "٣"),
        ("9" * 40, "9" * 40),
    ],
)
def test_what_is_no_number_stays_for_the_api_to_refuse(text: str, value: Any) -> None:
    assert number(text) == value
    assert type(number(text)) is type(value)


@given(st.lists(st.text(alphabet='ab ,"=é', min_size=1, max_size=6).map(str.strip).filter(bool), max_size=5))
def test_names_are_the_same_after_they_were_shown(names: list[str]) -> None:
    assert words(listed(names)) == names


def test_names_stand_between_commas_or_lines() -> None:
    assert words("a, b\r\nc,,") == ["a", "b", "c"]
    assert words(" ") == []
