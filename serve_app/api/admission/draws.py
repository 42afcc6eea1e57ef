"""A request's draws from budgets: its key's limits or bought throughput, the AI gateway's rate limits
(for the endpoint, users, groups and service principals), and its key's money.

The endpoint's own rate limits count for every caller. Besides, one limit on calls and one on tokens apply:
the caller's own limit, otherwise the largest of its groups' limits, otherwise the default limit per user.
Depends neither on how budgets are stored nor on when a request ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from serve_app.api.admission.budget_reservation import COST, SCALE, cost, draw_of_budget, is_budgeted, refusal
from serve_app.api.protocol.error_reply import whole_seconds
from serve_app.endpoints.ai_gateway import RateLimit
from serve_app.endpoints.endpoint import Endpoint, Kind, Price
from serve_app.errors import LargerThanQuota, QuotaExceeded
from serve_app.types import Budget, Caller, Draw, Usage, Verdict

MINUTE_S: Final = 60.0
SLOWEST: Final = 1e-6  # per second, of a limit of 0, which never fills

REQUESTS: Final = "requests"
INPUT: Final = "input-tokens"
OUTPUT: Final = "output-tokens"
TOKENS: Final = "tokens"

_NAMES: Final = {REQUESTS: "requests", INPUT: "input tokens", OUTPUT: "output tokens", TOKENS: "tokens"}


def draws_of(endpoint: Endpoint, caller: Caller | None, ask: Callable[[], Usage]) -> list[Draw]:
    """All draws of one call. `ask` returns the most that the call can use; it is called only if there is a
    limit."""
    limits = () if endpoint.ai_gateway is None else endpoint.ai_gateway.rate_limits
    is_limited = endpoint.kind is Kind.PROVISIONED or endpoint.limits is not None or bool(limits)
    has_budget = is_budgeted(endpoint.price, caller)
    if not (is_limited or has_budget):
        return []
    reserved = ask()
    own = _of_throughput if endpoint.kind is Kind.PROVISIONED else _of_key
    draws = [*own(endpoint, caller, reserved), *_of_rate_limits(endpoint, limits, caller, reserved)]
    if has_budget and endpoint.price is not None and caller is not None:
        draws.append(draw_of_budget(endpoint.price, caller, reserved))
    return draws


def settlement_of(draws: Sequence[Draw], usage: Usage, price: Price | None, *, is_free: bool) -> list[Draw]:
    """The differences between the actual use and the draws. A free call gets all its draws back."""
    used: dict[str, float] = {
        REQUESTS: 1,
        INPUT: usage.prompt_tokens,
        OUTPUT: usage.generated_tokens,
        TOKENS: usage.prompt_tokens + usage.generated_tokens,
        COST: 0.0 if price is None else cost(price, usage) * SCALE,
    }
    return [
        replace(draw, amount=(0 if is_free else used[draw.unit]) - draw.amount, released=draw.amount)
        for draw in draws
    ]


def refusal_of(draws: Sequence[Draw], verdict: Verdict) -> QuotaExceeded:
    """The error for a client whose claim was refused."""
    of_unit = [draw for draw in draws if draw.unit == verdict.refused]
    draw = of_unit[0] if verdict.refused_draw is None else draws[verdict.refused_draw]
    if draw.unit == COST:
        return refusal(draw)
    name, limit = _NAMES[draw.unit], math.floor(draw.capacity)
    if limit == 0:
        return LargerThanQuota(f"a rate limit of 0 {name} a minute lets no request of this caller through")
    if verdict.retry_after_s is None:
        return LargerThanQuota(
            f"the request alone needs {math.ceil(draw.amount)} {name}, more than the limit "
            f"of {limit}; shorten it or lower max_tokens"
        )
    return QuotaExceeded(
        f"the limit of {round(draw.per_second * MINUTE_S)} {name} a minute is reached; "
        f"try again in {whole_seconds(verdict.retry_after_s)} s",
        retry_after_s=verdict.retry_after_s,
    )


def tightest(budgets: Sequence[Budget]) -> tuple[Budget, ...]:
    """One budget for each unit except money: the budget with the smallest share of its limit left."""
    found: dict[str, Budget] = {}
    for budget in budgets:
        if budget.unit == COST:
            continue
        other = found.get(budget.unit)
        if other is None or _share(budget) < _share(other):
            found[budget.unit] = budget
    return tuple(found.values())


def _share(budget: Budget) -> float:
    return budget.remaining / max(1, budget.limit)


def _of_throughput(endpoint: Endpoint, caller: Caller | None, reserved: Usage) -> Iterator[Draw]:
    rate = float(sum(entity.max_provisioned_throughput or 0 for entity in endpoint.served_entities))
    capacity = rate * endpoint.burst_s
    # A request that is larger than the whole burst takes all of the burst.
    amount = min(capacity, reserved.prompt_tokens + reserved.completion_tokens)
    yield Draw(
        bucket=f"{endpoint.name}|{TOKENS}", unit=TOKENS, amount=amount, capacity=capacity, per_second=rate
    )


def _of_key(endpoint: Endpoint, caller: Caller | None, reserved: Usage) -> Iterator[Draw]:
    limits = endpoint.limits
    if limits is None:
        return
    key = caller.key_id if caller else ""
    for unit, amount, limit in (
        (REQUESTS, 1, limits.requests_per_minute),
        (INPUT, reserved.prompt_tokens, limits.input_tokens_per_minute),
        (OUTPUT, reserved.completion_tokens, limits.output_tokens_per_minute),
    ):
        if limit is not None:
            yield Draw(
                bucket=f"{endpoint.name}|{key}|{unit}",
                unit=unit,
                amount=amount,
                capacity=limit,
                per_second=limit / MINUTE_S,
            )


def _of_rate_limits(
    endpoint: Endpoint, limits: Sequence[RateLimit], caller: Caller | None, reserved: Usage
) -> Iterator[Draw]:
    tokens = reserved.prompt_tokens + reserved.completion_tokens
    for unit, amount in ((REQUESTS, 1), (TOKENS, tokens)):
        for rule, whose in _in_force([each for each in limits if _unit(each) == unit], caller):
            limit = _most(rule)
            yield Draw(
                # No name of a key has a colon, so that no bucket of a key is one of these.
                bucket=f"{endpoint.name}|rate:{rule.key}|{whose}|{unit}",
                unit=unit,
                # A request that is larger than a whole minute takes all of it; none passes a limit of 0.
                amount=min(limit, amount) if limit else 1,
                capacity=limit,
                per_second=limit / MINUTE_S or SLOWEST,
            )


def _in_force(limits: Sequence[RateLimit], caller: Caller | None) -> Iterator[tuple[RateLimit, str]]:
    """The limits in one unit that apply to `caller`, each with the user or group that shares it."""
    of_all = [each for each in limits if each.key == "endpoint"]
    if of_all:
        yield min(of_all, key=_most), ""
    if caller is None:
        return
    user = caller.owner
    kind = "service_principal" if caller.is_service_principal else "user"
    own = [each for each in limits if each.key == kind and each.principal == user]
    of_groups = [each for each in limits if each.key == "user_group" and each.principal in caller.groups]
    of_each = [each for each in limits if each.key == "user" and each.principal is None]
    if own:
        yield min(own, key=_most), user
    elif of_groups:
        largest = max(of_groups, key=_most)
        yield largest, largest.principal or ""
    elif of_each:
        # A user and a service principal of the same name are two.
        yield min(of_each, key=_most), f"{kind}:{user}"


def _unit(limit: RateLimit) -> str:
    return REQUESTS if limit.tokens is None else TOKENS


def _most(limit: RateLimit) -> int:
    return limit.tokens if limit.tokens is not None else limit.calls or 0
