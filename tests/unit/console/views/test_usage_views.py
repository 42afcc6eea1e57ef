from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import pytest

from serve_app.console.views.day_chart import HEIGHT, MAX_DAYS, WIDTH, cost_chart, token_chart
from serve_app.console.views.usage import usage_row, usage_rows
from serve_app.console.views.usage_query import DEFAULT_BY, Chosen, chosen_in
from tests.support.console_forms import form_of

NOW = datetime(2026, 3, 15, 12, 30, tzinfo=UTC)


def row(prompt: int, completion: int, **fields: Any) -> dict[str, Any]:
    return {
        "requests": {"finished": 3, "failed": 1, "lost": 1, "aborted": 2},
        "prompt_tokens": prompt,
        "cached_tokens": 0,
        "completion_tokens": completion,
        "migrations": 0,
        "cost": {"USD": 0.5, "EUR": 1.0},
        **fields,
    }


@pytest.mark.parametrize(
    ("chosen", "since", "until"),
    [
        (Chosen(period="1d"), "2026-03-14T12:30:00Z", None),
        (Chosen(period="7d"), "2026-03-09", None),
        (Chosen(period="month"), "2026-03-01", None),
        (Chosen(period="custom", since="2026-01-01", until="2026-01-31"), "2026-01-01", "2026-02-01"),
        (Chosen(period="custom", until="2026-02-31"), None, "2026-02-31"),
        (Chosen(period="custom", since="last week"), "last week", None),
    ],
)
def test_the_period_that_is_asked_for(chosen: Chosen, since: str | None, until: str | None) -> None:
    query = chosen.query(NOW)
    assert (query.get("since"), query.get("until")) == (since, until)
    assert query["by"] == "endpoint,entity"
    assert chosen.query(NOW, by=())["by"] == ""


def test_what_is_unknown_in_a_link_falls_back() -> None:
    chosen = chosen_in(form_of([("period", "aeon"), ("by", "colour"), ("key", "search"), ("shadow", "on")]))
    assert (chosen.period, chosen.by, chosen.key, chosen.shadow) == ("7d", DEFAULT_BY, "search", True)
    assert chosen.query(NOW)["shadow"] == "true"


def test_days_that_are_named_go_before_a_period() -> None:
    chosen = chosen_in(form_of([("period", "7d"), ("since", "2026-01-01"), ("until", "")]))
    assert chosen.query(NOW)["since"] == "2026-01-01"
    assert "until" not in chosen.query(NOW)


def test_a_link_keeps_the_other_choices() -> None:
    chosen = chosen_in(form_of([("period", "30d"), ("by", "key"), ("by", "day"), ("endpoint", "a&b")]))
    assert parse_qs(chosen.link(period="1d")) == {"period": ["1d"], "by": ["key", "day"], "endpoint": ["a&b"]}


def test_rows_and_totals() -> None:
    report = {"by": ["endpoint"], "rows": [row(10, 5, endpoint="talk", total_s=0.5)]}
    (found,) = usage_rows(report)
    assert found.group == ("talk",)
    assert (found.requests, found.failed, found.aborted, found.tokens) == (7, 2, 2, 15)
    assert found.cost == (("EUR", 1.0), ("USD", 0.5))
    assert (found.first_token_s, found.total_s) == (None, 0.5)
    assert usage_row({}).requests == 0


def test_the_picture_shows_the_whole_period() -> None:
    report = {"by": ["day"], "rows": [row(1, 1, day="2026-03-14")]}
    chart = token_chart(report, Chosen(period="7d").first_day(NOW), "2026-03-15")
    assert chart is not None
    assert (len(chart.bars), chart.bars[0].day, chart.bars[-1].day) == (7, "2026-03-09", "2026-03-15")
    no_date = token_chart(report, "last week", "")
    assert no_date is not None
    assert len(no_date.bars) == 1


def test_a_day_without_a_request_is_an_empty_bar() -> None:
    report = {"by": ["day"], "rows": [row(60, 20, day="2026-03-01"), row(30, 10, day="2026-03-03")]}
    chart = token_chart(report)
    assert chart is not None
    assert [(bar.day, bar.parts[0].amount) for bar in chart.bars] == [
        ("2026-03-01", 60),
        ("2026-03-02", 0),
        ("2026-03-03", 30),
    ]
    first, empty, last = chart.bars
    prompts, answers = first.parts
    assert answers.y == 0
    assert prompts.y + prompts.height == pytest.approx(HEIGHT)
    assert [part.height for part in empty.parts] == [0, 0]
    assert last.x + last.width <= WIDTH
    assert chart.most == 80


def test_a_picture_of_nothing_and_of_very_long() -> None:
    assert token_chart({"by": ["day"], "rows": []}) is None
    long = {"by": ["day"], "rows": [row(0, 0, day="2016-01-01"), row(0, 0, day="2026-01-01")]}
    chart = token_chart(long)
    assert chart is not None
    assert len(chart.bars) == MAX_DAYS
    assert chart.bars[-1].day == "2026-01-01"


def test_money_is_stacked_by_key_and_little_is_drawn_as_one() -> None:
    def cost(day: int, key: str, **amounts: float) -> dict[str, Any]:
        return {**row(1, 1, day=f"2026-03-0{day}", key=key), "cost": amounts}

    keys = [cost(1, f"key-{number}", USD=float(number)) for number in range(1, 8)]
    report = {"by": ["day", "key"], "rows": [*keys, cost(2, "key-7", USD=2.0), cost(1, "euros", EUR=9.0)]}
    chart = cost_chart(report)
    assert chart is not None
    assert chart.currency == "USD"
    assert chart.series == (
        ("key-7", 9.0),
        ("key-6", 6.0),
        ("key-5", 5.0),
        ("key-4", 4.0),
        ("key-3", 3.0),
        ("2 others", 3.0),
    )
    assert [bar.amount for bar in chart.bars] == [28.0, 2.0]
    assert [part.colour for part in chart.bars[0].parts] == [0, 1, 2, 3, 4, 5]
    assert chart.bars[0].parts[-1].y == 0
    assert (
        cost_chart({"by": ["day", "key"], "rows": [{**row(1, 1, day="2026-03-01", key="x"), "cost": {}}]})
        is None
    )
