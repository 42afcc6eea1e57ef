"""Numbers and times as people read them."""

from __future__ import annotations

import pytest

from serve_app.console import reading
from serve_app.console.reading import NOTHING


@pytest.mark.parametrize(
    ("filter", "value", "text"),
    [
        (reading.number, 0, "0"),
        (reading.number, 1_234_567, "1,234,567"),
        (reading.number, 0.12345, "0.123"),
        (reading.number, 1234.56, "1,234.6"),
        (reading.number, float("nan"), NOTHING),
        (reading.compact, 999, "999"),
        (reading.compact, 1_234_567, "1.23 M"),
        (reading.compact, 2_500_000_000, "2.5 G"),
        (reading.size, 512, "512 B"),
        (reading.size, 5 * 2**20, "5 MiB"),
        (reading.size, 1000 * 2**30, "1000 GiB"),
        (reading.duration, 0.0123, "12.3 ms"),
        (reading.duration, 1.5, "1.5 s"),
        (reading.duration, 93, "1.55 min"),
        (reading.duration, 7200, "2 h"),
        (reading.duration, 400_000, "4.63 d"),
        (reading.share, 0.123, "12.3 %"),
        (reading.share, 1, "100 %"),
        (reading.money, 0, "0.00"),
        (reading.money, 1234.5, "1,234.50"),
        (reading.money, 0.5, "0.50"),
        (reading.money, 0.000123, "0.000123"),
        (reading.money, 0.00001, "0.00001"),
        (reading.money, 0.123456, "0.1235"),
        (reading.duration, 0.9996, "1000 ms"),
    ],
)
def test_a_value_and_its_unit(filter, value, text) -> None:
    assert filter(value) == text


@pytest.mark.parametrize("filter", list(reading.FILTERS.values()))
def test_nothing_is_a_dash(filter) -> None:
    assert filter(None) == NOTHING


def test_a_cost_has_its_currency() -> None:
    assert reading.money(2, "EUR") == "2.00 EUR"


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (1000.0, "now"),
        (970.0, "30 s ago"),
        (820.0, "3 min ago"),
        (8200.0, "in 2 h"),
        (1000 - 86_400 * 4, "4 d ago"),
    ],
)
def test_a_moment_is_told_from_now_and_exactly(at: float, text: str) -> None:
    moment = str(reading.when(at, now=lambda: 1000.0))
    assert f">{text}</time>" in moment
    assert 'datetime="19' in moment
