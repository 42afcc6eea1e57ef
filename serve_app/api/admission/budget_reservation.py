"""Reserves the largest possible cost of a call from its key's monthly budget, as from a bucket of money.

The bucket is never refilled. It starts with the unspent budget, as in the ledger, and each call settles its
cost. So concurrent calls spend no more than consecutive ones. Depends neither on keys nor on the ledger.
"""

from __future__ import annotations

import time
from typing import Final

from serve_app.endpoints.endpoint import Price
from serve_app.errors import BudgetSpent
from serve_app.types import Caller, Draw, Usage

COST: Final = "cost"
LARGEST: Final = 1e15  # a bucket counts exactly up to there
SLOWEST: Final = 1e-9  # per second, of a bucket that does not fill: no bucket takes less
SCALE: Final = 1e6  # a bucket counts millionths: a token may cost less than what buckets take for nothing


def cost(price: Price, usage: Usage) -> float:
    """What `usage` costs, in the price's currency."""
    cached = price.cached_input_per_million
    cached_price = price.input_per_million if cached is None else cached
    fresh = usage.prompt_tokens - usage.cached_tokens
    total = fresh * price.input_per_million + usage.cached_tokens * cached_price
    return (total + usage.generated_tokens * price.output_per_million) / 1e6


def is_budgeted(price: Price | None, caller: Caller | None) -> bool:
    """Whether a call at this price counts against a budget of the caller's key."""
    if price is None or caller is None or caller.budget is None:
        return False
    return price.currency == caller.budget.currency


def draw_of_budget(price: Price, caller: Caller, reserved: Usage) -> Draw:
    """What a budgeted call draws if it uses at most `reserved`; at most the whole bucket."""
    budget = caller.budget
    if budget is None:
        raise ValueError("the caller has no budget")
    month = time.strftime("%Y-%m", time.gmtime())
    whole = min(budget.most * SCALE, LARGEST)
    spent = budget.spent * SCALE if budget.month == month else 0.0
    return Draw(
        # No name of an endpoint begins with a bar. A changed budget is another bucket.
        bucket=f"|budget|{caller.key_id}|{month}|{budget.most:.15g} {budget.currency}",
        unit=COST,
        amount=min(whole, cost(price, reserved) * SCALE),
        capacity=whole,
        per_second=SLOWEST,
        level=max(0.0, whole - spent),
    )


def refusal(draw: Draw) -> BudgetSpent:
    """The error for a client whose budget is nearly or fully spent."""
    most = draw.capacity / SCALE
    return BudgetSpent(
        f"the request may cost more than is left of the key's budget of {most:.15g} for this "
        "month (UTC), of which requests under way reserve what they may cost; lower max_tokens"
    )
