"""The usage page's query of the ledger: its period, fields and filters. Independent of routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from serve_app.console.forms import Form

FIELDS: Final = (
    *("endpoint", "entity", "key", "user", "group"),
    *("kind", "route", "outcome", "day", "month"),
)
DEFAULT_BY: Final = ("endpoint", "entity")
# A period's name in a link -> its name for people.
PERIODS: Final[Mapping[str, str]] = {
    "1d": "24 hours",
    "7d": "7 days",
    "30d": "30 days",
    "90d": "90 days",
    "month": "this month",
}
CUSTOM: Final = "custom"  # from one day to another
DEFAULT_PERIOD: Final = "7d"
_OFFSET: Final = re.compile(r"[0-9]{1,5}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A query to the ledger."""

    period: str = DEFAULT_PERIOD
    by: tuple[str, ...] = DEFAULT_BY
    since: str = ""  # as typed, if the period is custom
    until: str = ""
    endpoint: str = ""
    key: str = ""
    shadow: bool = False
    offset: int = 0  # number of sums before the first one shown

    def query(self, now: datetime, by: Sequence[str] | None = None) -> dict[str, str]:
        """The query for the API's route, grouped by the fields `by` instead of the chosen ones."""
        since, until = self._span(now)
        found = {
            "by": ",".join(self.by if by is None else by),
            "since": since,
            "until": until,
            "endpoint": self.endpoint,
            "key": self.key,
            "shadow": "true" if self.shadow else "",
        }
        return {name: value for name, value in found.items() if value or name == "by"}

    def first_day(self, now: datetime) -> str:
        """The first day of the period, as a date; "" if there is none."""
        return self._span(now)[0][:10]

    def link(self, **changes: str) -> str:
        """The console page's query for its first page of sums, with some choices replaced."""
        said = {"period": self.period, "since": self.since, "until": self.until, "endpoint": self.endpoint}
        said |= {"key": self.key, "shadow": "on" if self.shadow else "", **changes}
        fields = [("by", name) for name in self.by]
        return urlencode([(name, value) for name, value in said.items() if value] + fields)

    def _span(self, now: datetime) -> tuple[str, str]:
        if self.period == CUSTOM:
            # If the end is given as a date, the whole of that day is included.
            return self.since, _day_after(self.until) if _DATE.fullmatch(self.until) else self.until
        if self.period == "month":
            return now.strftime("%Y-%m-01"), ""
        if self.period == "1d":
            return (now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"), ""
        days = int(self.period.removesuffix("d"))
        return (now - timedelta(days=days - 1)).strftime("%Y-%m-%d"), ""


def chosen_in(form: Form) -> Chosen:
    """Parse the page's query. Unknown values fall back to the page's defaults."""
    period = CUSTOM if form.text("since") or form.text("until") else form.text("period")
    by = tuple(name for name in dict.fromkeys(form.all("by")) if name in FIELDS)
    return Chosen(
        period=period if period in (*PERIODS, CUSTOM) else DEFAULT_PERIOD,
        by=by or DEFAULT_BY,
        since=form.text("since"),
        until=form.text("until"),
        endpoint=form.text("endpoint"),
        key=form.text("key"),
        shadow=bool(form.text("shadow")),
        offset=int(form.text("offset")) if _OFFSET.fullmatch(form.text("offset")) else 0,
    )


def _day_after(day: str) -> str:
    try:
        return (datetime.fromisoformat(day) + timedelta(days=1)).strftime("%Y-%m-%d")
    except ValueError:  # not a date: the API will refuse it
        return day
