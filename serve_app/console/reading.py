"""Numbers, sizes and times for people to read: with a unit, and no more precise than is useful."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup

NOTHING: Final = "–"
_UNITS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def number(value: float | None) -> str:
    """1234567 -> "1,234,567"; 0.12345 -> "0.123"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else _three(value)


def compact(value: float | None) -> str:
    """1234567 -> "1.23 M"."""
    if value is None or not math.isfinite(value):
        return NOTHING
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{_three(value / size)} {name}"
    return number(value)


def size(value: float | None) -> str:
    """Bytes: 5242880 -> "5 MiB"."""
    if value is None:
        return NOTHING
    for bytes_, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= bytes_:
            return f"{_three(value / bytes_)} {name}"
    return f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """0.0123 -> "12.3 ms"; 93 -> "1.55 min"."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 1:
        return f"{_three(seconds * 1000)} ms"
    for length, name in _UNITS:
        if seconds >= length:
            return f"{_three(seconds / length)} {name}"
    return f"{_three(seconds)} s"


def duration_ms(ms: float | None) -> str:
    """`duration`, but for milliseconds, as in the request log."""
    return duration(None if ms is None else ms / 1000)


def share(value: float | None) -> str:
    """0.123 -> "12.3 %"."""
    return NOTHING if value is None or not math.isfinite(value) else f"{_three(value * 100)} %"


def money(value: float | None, currency: str | None = None) -> str:
    """1234.5 -> "1,234.50 USD"; small amounts keep their significant digits."""
    if value is None:
        return NOTHING
    decimals = 2 if value == 0 or abs(value) >= 1 else min(10, 3 - math.floor(math.log10(abs(value))))
    whole, _, part = f"{value:,.{decimals}f}".partition(".")
    text = f"{whole}.{part.rstrip('0'):0<2}"
    return f"{text} {currency}" if currency else text


def _three(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def when(unix_s: float | None, now: Callable[[], float] = time.time) -> Markup | str:
    """A moment as "3 min ago" or "in 2 h", in an HTML element that also has the exact time."""
    if not unix_s:
        return NOTHING
    moment = datetime.fromtimestamp(unix_s, UTC)
    exact = moment.isoformat(timespec="seconds")
    away = unix_s - now()
    if abs(away) < 5:
        text = "now"
    else:
        length, name = next(((length, name) for length, name in _UNITS if abs(away) >= length), (1.0, "s"))
        text = f"in {away / length:.0f} {name}" if away > 0 else f"{-away / length:.0f} {name} ago"
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, text)


def when_ms(unix_ms: float | None) -> Markup | str:
    """`when`, but for milliseconds, as in the management API."""
    return when(None if unix_ms is None else unix_ms / 1000)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "compact": compact,
    "size": size,
    "duration": duration,
    "duration_ms": duration_ms,
    "share": share,
    "money": money,
    "when": when,
    "when_ms": when_ms,
}
