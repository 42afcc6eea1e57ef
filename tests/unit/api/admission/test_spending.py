"""Budgets of keys are reserved: many requests at once spend no more than one after the other."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from serve_app.types.control import KnownKey, Snapshot
from tests.support.fakes_backend import PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import CHAT, Gateway, bearer, chat_body, gateway
from tests.support.run_time_keys import run_time_key, take

PRICE = {"input_per_million": 0.0, "output_per_million": 1_000_000.0}  # 1 USD a token
ENDPOINTS = [{"name": "demo", "price": PRICE}]
MONTH = time.strftime("%Y-%m", time.gmtime())


def known(**fields: Any) -> tuple[dict[str, str], KnownKey]:
    secret, key = run_time_key("poor", **fields)
    return bearer(secret), key


async def asked(g: Gateway, headers: dict[str, str], most: int, times: int = 1) -> list[httpx.Response]:
    bodies = [chat_body(max_tokens=most) for _ in range(times)]
    return await asyncio.gather(*(g.post(CHAT, body, headers=headers) for body in bodies))


async def test_requests_at_once_spend_no_more_than_the_budget() -> None:
    headers, key = known(budget=1.0 * len(WORDS) * 2)
    async with gateway(FakeBackend(pauses={0: 0.05}), endpoints=ENDPOINTS, at_run_time=True) as g:
        take(g.services, Snapshot(version=1, keys=(key,)))
        answers = await asked(g, headers, most=len(WORDS), times=12)
        assert sorted(answer.status_code for answer in answers) == [200] * 2 + [429] * 10
        assert sum(record.cost or 0.0 for record in g.journal.records) <= 2 * len(WORDS)
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert "the key's budget" in refused.text
        assert refused.headers["x-should-retry"] == "false"
        assert not [name for name in answers[0].headers if name.startswith("x-ratelimit")]


async def test_what_a_request_did_not_use_goes_back() -> None:
    headers, key = known(budget=100.0)
    async with gateway(endpoints=ENDPOINTS, at_run_time=True) as g:
        take(g.services, Snapshot(version=1, keys=(key,)))
        fits = 100 // len(WORDS)
        for _ in range(fits - 1):  # each reserves all of it, and uses a little
            assert [each.status_code for each in await asked(g, headers, most=len(WORDS) + 1)] == [200]
        assert (await asked(g, headers, most=99))[0].status_code == 429


async def test_what_the_ledger_knows_of_this_month_is_gone_and_of_another_is_not() -> None:
    for month, status in ((MONTH, 429), ("2020-01", 200)):
        headers, key = known(budget=100.0, spent=95.0, month=month)
        async with gateway(endpoints=ENDPOINTS, at_run_time=True) as g:
            take(g.services, Snapshot(version=1, keys=(key,)))
            assert (await asked(g, headers, most=50))[0].status_code == status


async def test_a_larger_budget_counts_at_once() -> None:
    headers, key = known(budget=float(len(WORDS)))
    async with gateway(endpoints=ENDPOINTS, at_run_time=True) as g:
        take(g.services, Snapshot(version=1, keys=(key,)))
        assert [each.status_code for each in await asked(g, headers, len(WORDS))] == [200]
        assert [each.status_code for each in await asked(g, headers, len(WORDS))] == [429]
        _, more = known(budget=1_000.0, spent=float(len(WORDS)), month=MONTH)
        take(g.services, Snapshot(version=2, keys=(KnownKey(**_fields(more, key)),)))
        assert [each.status_code for each in await asked(g, headers, len(WORDS))] == [200]


async def test_nothing_is_reserved_without_a_price_or_in_another_currency() -> None:
    for price in (None, {**PRICE, "currency": "EUR"}):
        headers, key = known(budget=1.0)
        endpoints = [{"name": "demo"} if price is None else {"name": "demo", "price": price}]
        async with gateway(endpoints=endpoints, at_run_time=True) as g:
            take(g.services, Snapshot(version=1, keys=(key,)))
            answers = await asked(g, headers, most=PROMPT_TOKENS + 50, times=3)
            assert [answer.status_code for answer in answers] == [200] * 3


def _fields(key: KnownKey, secret_of: KnownKey) -> dict[str, Any]:
    names = (
        *("name", "user", "is_service_principal", "groups", "scopes", "endpoints"),
        *("budget", "currency", "spent", "month"),
    )
    return {**{name: getattr(key, name) for name in names}, "digest": secret_of.digest}
