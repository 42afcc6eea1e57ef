"""The response headers that report the state of a caller's budgets, with OpenAI's names.

`x-ratelimit-{limit,remaining,reset}-{requests,input-tokens,output-tokens,tokens}`. If input and output have
separate limits, `tokens` repeats the limit that has fewer tokens left, for clients that read only `tokens`.

`x-budget-warning` says in words that a key has spent its soft budget of the month.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from serve_app.types import Budget, Caller

BUDGET_WARNING: Final = b"x-budget-warning"


def budget_headers(budgets: Sequence[Budget], caller: Caller | None) -> list[tuple[bytes, bytes]]:
    """Raw ASGI headers: three per budget, and the budget warning for the caller's key."""
    headers = [pair for budget in _with_tokens(budgets) for pair in _of(budget)]
    if caller is not None and caller.over_soft_budget:
        headers.append((BUDGET_WARNING, _one_line(caller.over_soft_budget)))
    return headers


def duration(seconds: float) -> str:
    """A duration as OpenAI writes one: `250ms`, `6s`, `1m30s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _one_line(text: str) -> bytes:
    return " ".join(text.split()).encode("ascii", "replace")


def _of(budget: Budget) -> Iterator[tuple[bytes, bytes]]:
    values = (("limit", budget.limit), ("remaining", budget.remaining), ("reset", duration(budget.reset_s)))
    for what, value in values:
        yield f"x-ratelimit-{what}-{budget.unit}".encode(), str(value).encode()


def _with_tokens(budgets: Sequence[Budget]) -> Iterator[Budget]:
    yield from (budget for budget in budgets if budget.unit != "tokens")
    tokens = [budget for budget in budgets if budget.unit.endswith("tokens")]
    if tokens:
        tightest = min(tokens, key=lambda budget: budget.remaining / max(1, budget.limit))
        yield replace(tightest, unit="tokens")
