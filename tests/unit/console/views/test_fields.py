from __future__ import annotations

from typing import Any

import pytest

from serve_app.console.views.fields import number, words


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


def test_names_stand_between_commas_or_lines() -> None:
    assert words("a, b\r\nc,,") == ["a", "b", "c"]
    assert words(" ") == []
