"""Tokens of each day as a picture of bars: plain numbers for a template to draw. Knows no route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from serve_app.console.views.usage import usage_row, usage_rows

Json = Mapping[str, Any]

# A day is at least some pixels wide; of more days than these the last ones are drawn.
MAX_DAYS: Final = 366


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One day of the picture; lengths are in its own units, from the top left."""

    day: str
    x: float
    width: float
    prompt_y: float
    prompt_height: float
    completion_y: float
    completion_height: float
    prompt_tokens: int
    completion_tokens: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DayChart:
    """Tokens of each day as bars: of prompts below, of answers above."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    most: int  # tokens of the busiest day


WIDTH: Final = 720.0
HEIGHT: Final = 120.0
_GAP: Final = 0.2  # of a day's width, between two bars


def day_chart(report: Json, first: str = "", last: str = "") -> DayChart | None:
    """Of a report by day; None where there is no day. Days without a request are empty.

    The picture goes from the date `first` to `last` at least, where these are dates.
    """
    rows = {row.group[0]: row for row in usage_rows(report) if _is_day(row.group[0])}
    if not rows:
        return None
    asked = [day for day in (first, last) if _is_day(day)]
    days = _days(min([*rows, *asked]), max([*rows, *asked]))[-MAX_DAYS:]
    shown = [rows.get(day) or usage_row({}) for day in days]
    most = max(row.tokens for row in shown)
    scale = HEIGHT / most if most else 0.0
    step = WIDTH / len(days)
    bars = []
    for index, (day, row) in enumerate(zip(days, shown, strict=True)):
        prompt, completion = row.prompt_tokens * scale, row.completion_tokens * scale
        bars.append(
            Bar(
                day=day,
                x=round(step * (index + _GAP / 2), 2),
                width=round(step * (1 - _GAP), 2),
                prompt_y=round(HEIGHT - prompt, 2),
                prompt_height=round(prompt, 2),
                completion_y=round(HEIGHT - prompt - completion, 2),
                completion_height=round(completion, 2),
                prompt_tokens=row.prompt_tokens,
                completion_tokens=row.completion_tokens,
                requests=row.requests,
            )
        )
    return DayChart(width=WIDTH, height=HEIGHT, bars=tuple(bars), most=most)


def _days(first: str, last: str) -> list[str]:
    day, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    count = (end - day).days + 1
    return [(day + timedelta(days=number)).strftime("%Y-%m-%d") for number in range(count)]


def _is_day(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d") == text
    except ValueError:
        return False
