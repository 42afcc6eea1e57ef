"""Daily amounts as a stacked bar chart: plain numbers for a template to draw. Independent of routes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from serve_app.console.views import Json
from serve_app.console.views.usage import usage_rows

# Each day needs a few pixels, so if there are more days than this, only the last ones are drawn.
MAX_DAYS: Final = 366
WIDTH: Final = 720.0
HEIGHT: Final = 120.0
MOST_KEYS: Final = 5  # keys that get a colour of their own
OTHERS: Final = "others"
_GAP: Final = 0.2  # between two bars, as a share of a day's width


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A segment of a bar; positions are in the chart's units, from the top left."""

    name: str
    amount: float
    y: float
    height: float
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One day."""

    day: str
    x: float
    width: float
    parts: tuple[Part, ...]  # the lowest first

    @property
    def amount(self) -> float:
        return sum(part.amount for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class DayChart:
    """Days side by side, with the sum of each series over all days."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    series: tuple[tuple[str, float], ...]
    most: float  # of one day
    currency: str = ""  # of money


def token_chart(report: Json, first: str = "", last: str = "") -> DayChart | None:
    """Prompt and answer tokens by day, from a report by day. See `day_chart`."""
    series: dict[str, dict[str, float]] = {"prompts": {}, "answers": {}}
    for row in usage_rows(report):
        series["prompts"][row.group[0]] = row.prompt_tokens
        series["answers"][row.group[0]] = row.completion_tokens
    return day_chart(series, first, last)


def cost_chart(report: Json, first: str = "", last: str = "") -> DayChart | None:
    """The cost by day and key, from a report by day and key; None if nothing cost anything.

    Of several currencies, the one with the largest sum is drawn. Keys that spent little are drawn as one.
    """
    costs: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in usage_rows(report):
        day, key = row.group
        for currency, amount in row.cost:
            costs[currency][key][day] = amount
    totals = {currency: _sum(by_key.values()) for currency, by_key in costs.items()}
    currency = max(totals, key=lambda each: totals[each], default="")
    if not totals.get(currency):
        return None
    by_key = costs[currency]
    ranked = sorted(by_key, key=lambda key: (-sum(by_key[key].values()), key))
    series = {key: by_key[key] for key in ranked[:MOST_KEYS]}
    if len(ranked) > MOST_KEYS:
        rest: dict[str, float] = defaultdict(float)
        for key in ranked[MOST_KEYS:]:
            for day, amount in by_key[key].items():
                rest[day] += amount
        series[f"{len(ranked) - MOST_KEYS} {OTHERS}"] = rest
    return day_chart(series, first, last, currency)


def day_chart(
    series: Mapping[str, Mapping[str, float]], first: str = "", last: str = "", currency: str = ""
) -> DayChart | None:
    """A chart of daily amounts, one series stacked on the next; None if there is no day.

    The chart covers at least the days from `first` to `last`, if these are dates. Days without an amount
    are empty.
    """
    known = {day for amounts in series.values() for day in amounts if _is_day(day)}
    if not known:
        return None
    asked = [day for day in (first, last) if _is_day(day)]
    days = _days(min([*known, *asked]), max([*known, *asked]))[-MAX_DAYS:]
    sums = {day: sum(amounts.get(day, 0.0) for amounts in series.values()) for day in days}
    most = max(sums.values())
    scale, step = HEIGHT / most if most else 0.0, WIDTH / len(days)
    bars = tuple(
        Bar(
            day=day,
            x=round(step * (index + _GAP / 2), 2),
            width=round(step * (1 - _GAP), 2),
            parts=tuple(_parts(day, series, scale)),
        )
        for index, day in enumerate(days)
    )
    totals = tuple((name, sum(amounts.get(day, 0.0) for day in days)) for name, amounts in series.items())
    return DayChart(width=WIDTH, height=HEIGHT, bars=bars, series=totals, most=most, currency=currency)


def _parts(day: str, series: Mapping[str, Mapping[str, float]], scale: float) -> Iterable[Part]:
    y = HEIGHT
    for colour, (name, amounts) in enumerate(series.items()):
        amount = amounts.get(day, 0.0)
        y -= amount * scale
        yield Part(name=name, amount=amount, y=round(y, 2), height=round(amount * scale, 2), colour=colour)


def _sum(amounts: Iterable[Mapping[str, float]]) -> float:
    return sum(sum(each.values()) for each in amounts)


def _days(first: str, last: str) -> Sequence[str]:
    day, end = datetime.fromisoformat(first), datetime.fromisoformat(last)
    count = (end - day).days + 1
    return [(day + timedelta(days=number)).strftime("%Y-%m-%d") for number in range(count)]


def _is_day(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d") == text
    except ValueError:
        return False
