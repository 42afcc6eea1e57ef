"""Converts between a row of the ledger and the known facts about one request."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, astuple
from typing import Any, Final

from serve_app.accounts.merge import Known, Used
from serve_app.control.ledger.tables import Usage
from serve_app.types import UsageRecord

_OWN: Final = ""  # the part from the journal of the request's own gateway

# Columns that have the name and the value of a record's field.
_SAME: Final = (
    *("id", "key_id", "user", "endpoint", "entity", "kind", "route", "started", "outcome", "status"),
    *("prompt_tokens", "cached_tokens", "completion_tokens", "discarded_tokens"),
    *("first_token_s", "queue_s", "total_s", "migrations", "cost", "currency"),
)


def day_of(seconds: float) -> str:
    """The date of a Unix time, in UTC: 2026-03-01."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def values_of(known: Known) -> dict[str, Any]:
    """The columns of a row for `known`."""
    total = known.total()
    return {
        **{name: _storable(getattr(total, name)) for name in _SAME},
        "is_ended": known.is_ended,
        "groups": json.dumps(total.groups),
        "failed_over": ",".join(total.failed_over),
        "day": day_of(total.started),
        "is_shadow": total.shadow,
        "parts": None if known.is_ended else _written_parts(known),
    }


def known_by(row: Usage) -> Known:
    """The facts in `row`; the reverse of `values_of`."""
    fields: dict[str, Any] = {name: getattr(row, name) for name in _SAME}
    fields |= {"groups": tuple(json.loads(row.groups)), "shadow": row.is_shadow}
    fields["failed_over"] = tuple(row.failed_over.split(",")) if row.failed_over else ()
    parts = {prompt: (moves, Used(*used)) for prompt, (moves, *used) in (row.parts or {}).items()}
    if row.is_ended:
        return Known(UsageRecord(**fields), is_ended=True)
    _, own = parts.pop(_OWN)
    return Known(UsageRecord(**fields | asdict(own)), parts=parts)


def _storable(value: Any) -> Any:
    """Remove NUL, which PostgreSQL does not accept in texts."""
    return value.replace("\0", "") if isinstance(value, str) else value


def _written_parts(known: Known) -> dict[str, list[Any]]:
    parts = {prompt: [moves, *astuple(used)] for prompt, (moves, used) in known.parts.items()}
    return {_OWN: [0, *astuple(Used.of(known.record))], **parts}
