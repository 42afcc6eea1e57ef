"""Budgets and records over HTTP: what is reserved, given back, refused and written down."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from serve_app.accounts.keys import new_key
from serve_app.api.admission.budget_reservation import cost
from serve_app.api.admission.estimates import prompt_tokens
from serve_app.api.edge.ratelimit import budget_headers, duration
from serve_app.endpoints.endpoint import Price
from serve_app.errors import DeadlineExceeded, GenerationFailed, InvalidField, Overloaded, PromptTooLong
from serve_app.types import Budget, Prompt, Usage, UsageRecord
from tests.support.fakes_backend import (
    CACHED_TOKENS,
    PROMPT_TOKENS,
    WORDS,
    FakeBackend,
    embedder_info,
    model_info,
)
from tests.support.gateway import CHAT, Gateway, bearer, chat_body, gateway, served
from tests.support.streams import GeneratedStream

ALICE, ALICE_LINE = new_key("alice")
BOB, BOB_LINE = new_key("bob")
KEYS = f"{ALICE_LINE} {BOB_LINE}"


def limited(**limits: int) -> list[dict[str, Any]]:
    return [{"name": "demo", "limits": limits}, {"name": "org/other"}]


async def test_a_budget_for_ten_admits_ten_of_two_hundred() -> None:
    async with gateway(endpoints=limited(requests_per_minute=10)) as g:
        answers = await asyncio.gather(*(g.chat() for _ in range(200)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200] * 10 + [429] * 190
        refused = next(answer for answer in answers if answer.status_code == 429)
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
        assert "10 requests a minute" in error["message"]
        assert refused.headers["retry-after"] == "6"  # one request in six seconds
        assert refused.headers["x-ratelimit-limit-requests"] == "10"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(g.journal.records) == 10  # what was never admitted was never used


async def test_each_key_has_its_own_budget() -> None:
    async with gateway(keys=KEYS, endpoints=limited(requests_per_minute=1)) as g:
        for key in (ALICE, BOB):
            codes = [(await g.post(CHAT, chat_body(), headers=bearer(key))).status_code for _ in range(2)]
            assert codes == [200, 429]
        other = await g.post(CHAT, {**chat_body(), "model": "org/other"}, headers=bearer(ALICE))
        assert other.status_code == 200
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]


async def test_output_is_reserved_at_its_most_and_settled_at_what_it_was() -> None:
    async with gateway(endpoints=limited(output_tokens_per_minute=100)) as g:
        first = await g.chat(max_tokens=40)
        assert first.headers["x-ratelimit-remaining-output-tokens"] == "60"
        second = await g.chat(max_tokens=90)  # only the words of the first were used
        assert second.headers["x-ratelimit-remaining-output-tokens"] == str(100 - len(WORDS) - 90)
        assert (
            second.headers["x-ratelimit-remaining-tokens"]
            == second.headers["x-ratelimit-remaining-output-tokens"]
        )


async def test_no_more_output_is_reserved_than_the_model_can_write() -> None:
    window, limit = model_info().context_window, 1000
    async with gateway(endpoints=limited(output_tokens_per_minute=limit)) as g:
        answer = await g.chat(max_tokens=32_000)
        assert answer.headers["x-ratelimit-remaining-output-tokens"] == str(limit - window)


async def test_n_choices_reserve_n_times() -> None:
    async with gateway(endpoints=limited(output_tokens_per_minute=100)) as g:
        assert (await g.chat(max_tokens=40, n=2)).status_code == 200
        large = await g.chat(max_tokens=40, n=3)
        assert large.status_code == 429
        assert large.headers["x-should-retry"] == "false"
        assert "retry-after" not in large.headers
        assert "needs 120 output tokens, more than the limit of 100" in large.json()["error"]["message"]


async def test_no_limit_on_the_output_reserves_the_default() -> None:
    endpoints = limited(output_tokens_per_minute=100, default_output_tokens=30)
    async with gateway(endpoints=endpoints) as g:
        assert (await g.chat()).headers["x-ratelimit-remaining-output-tokens"] == "70"


async def test_a_prompt_is_charged_by_estimate_and_then_as_it_was() -> None:
    async with gateway(endpoints=limited(input_tokens_per_minute=1000)) as g:
        await g.chat(messages=[{"role": "user", "content": "x" * 400}])
        again = await g.chat(messages=[{"role": "user", "content": "x" * 400}])
        assert again.headers["x-ratelimit-remaining-input-tokens"] == str(1000 - PROMPT_TOKENS - 105)


async def test_a_prompt_alone_is_charged_too() -> None:
    async with gateway(FakeBackend(words=("",)), endpoints=limited(requests_per_minute=1)) as g:
        g.backend.usage = Usage(prompt_tokens=PROMPT_TOKENS)
        codes = [(await g.complete(max_tokens=0, echo=True)).status_code for _ in range(2)]
        assert codes == [200, 429]
        assert [record.completion_tokens for record in g.journal.records] == [0]


async def test_what_failed_for_our_reasons_costs_nothing() -> None:
    async with gateway(FakeBackend(refuse=Overloaded("full")), endpoints=limited(requests_per_minute=2)) as g:
        for _ in range(5):
            assert (await g.chat()).status_code == 503
        assert {record.outcome for record in g.journal.records} == {"failed"}
        assert {record.status for record in g.journal.records} == {503}
        g.backend.refuse = None
        assert (await g.chat()).status_code == 200


def remaining(answer: httpx.Response, *units: str) -> list[int]:
    return [int(answer.headers[f"x-ratelimit-remaining-{unit}"]) for unit in units]


async def hung_up(g: Gateway, path: str, body: dict[str, Any]) -> UsageRecord:
    """The record of a request whose client leaves as soon as a model works for it."""
    async with served(g.app) as (host, port):
        _reader, writer = await asyncio.open_connection(host, port)
        raw = json.dumps(body).encode()
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw
        )
        async with asyncio.timeout(60):
            while not g.backend.running:
                await asyncio.sleep(0)
            for _ in range(20):  # what the model says on its way is read
                await asyncio.sleep(0)
            writer.close()
            await g.backend.closed.wait()
            while g.journal.open:
                await asyncio.sleep(0.01)
    return g.journal.records[-1]


ALL = {"requests_per_minute": 10, "input_tokens_per_minute": 1000, "output_tokens_per_minute": 1000}
WORK = Usage(prompt_tokens=70, cached_tokens=20, completion_tokens=8, discarded_tokens=24)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("work", [None, Usage(prompt_tokens=70), WORK])
async def test_hanging_up_before_the_first_token_costs_the_work_done(
    work: Usage | None, stream: bool
) -> None:
    backend = FakeBackend(hang_after=0, progress=work)
    async with gateway(backend, endpoints=limited(**ALL)) as g:
        record = await hung_up(g, CHAT, chat_body(stream=stream, max_tokens=40))
        used = work or Usage()
        assert (record.outcome, record.status, record.prompt_tokens) == ("aborted", 0, used.prompt_tokens)
        assert (record.completion_tokens, record.discarded_tokens) == (
            used.completion_tokens + used.discarded_tokens,
            used.discarded_tokens,
        )
        backend.hang_after = backend.progress = None
        after = await g.chat(max_tokens=10)
        left = remaining(after, "requests", "input-tokens", "output-tokens")
        prompt = prompt_tokens(Prompt(messages=({"role": "user", "content": "Hello!"},)))
        assert left == [8, 1000 - used.prompt_tokens - prompt, 1000 - used.generated_tokens - 10]


async def test_hanging_up_spends_the_budget_of_requests() -> None:
    async with gateway(FakeBackend(hang_after=0), endpoints=limited(requests_per_minute=3)) as g:
        for _ in range(3):
            g.backend.closed.clear()
            assert (await hung_up(g, CHAT, chat_body())).outcome == "aborted"
        assert (await g.chat()).status_code == 429


@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/detokenize", "/v1/watermark/detect"])
async def test_hanging_up_on_a_question_costs_its_estimate(path: str) -> None:
    backend = FakeBackend([model_info(), embedder_info()], hang_after=0)
    endpoints = [
        {"name": "demo", "limits": ALL},
        {"name": "embedder", "task": "llm/v1/embeddings", "limits": ALL},
    ]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"model": "embedder", "input": "x" * 400},
        "/tokenize": {"model": "demo", "prompt": "x" * 400},
        "/detokenize": {"model": "demo", "tokens": [5] * 100},
        "/v1/watermark/detect": {"model": "demo", "text": "x" * 400},
    }
    async with gateway(backend, endpoints=endpoints) as g:
        record = await hung_up(g, path, bodies[path])
        assert (record.outcome, record.prompt_tokens, record.route) == ("aborted", 100, path)
        backend.hang_after = None
        after = await g.post(path, bodies[path])
        assert remaining(after, "requests", "input-tokens") == [8, 800]


QUESTIONS: list[tuple[str, dict[str, Any], int]] = [  # with the tokens that its answer counts
    ("/tokenize", {"model": "demo", "prompt": "x" * 400}, 2),
    ("/v1/tokenize", {"model": "demo", "messages": [{"role": "user", "content": "x" * 400}]}, 2),
    ("/detokenize", {"model": "demo", "tokens": [5] * 70}, 70),
    ("/v1/watermark/detect", {"model": "demo", "text": "x" * 400}, 100),
]


@pytest.mark.parametrize(("path", "body", "tokens"), QUESTIONS)
async def test_a_question_costs_a_request_and_its_tokens(
    path: str, body: dict[str, Any], tokens: int
) -> None:
    price = {"input_per_million": 1e6, "output_per_million": 1e6}
    few = {"requests_per_minute": 2, "input_tokens_per_minute": 1_000}
    async with gateway(endpoints=[{"name": "demo", "limits": few, "price": price}]) as g:
        codes = [(await g.post(path, body)).status_code for _ in range(3)]
        assert codes == [200, 200, 429]
        assert [(r.prompt_tokens, r.completion_tokens, r.cost) for r in g.journal.records] == [
            (tokens, 0, None)
        ] * 2
        assert {(r.outcome, r.route, r.status) for r in g.journal.records} == {("finished", path, 200)}
    async with gateway(endpoints=limited(input_tokens_per_minute=60)) as g:
        refused = await g.post(path, body)  # 70 tokens and more, by estimate
        assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
        assert not g.backend.questions


async def test_candidates_that_are_dropped_are_work_and_no_usage() -> None:
    price = {"input_per_million": 0.0, "output_per_million": 1e6}
    usage = Usage(prompt_tokens=5, completion_tokens=6, discarded_tokens=42)
    endpoints = [{"name": "demo", "limits": ALL, "price": price}]
    async with gateway(FakeBackend(usage=usage), endpoints=endpoints) as g:
        answer = await g.complete(max_tokens=6, best_of=8)
        assert answer.json()["usage"]["completion_tokens"] == 6
        (record,) = g.journal.records
        assert (record.completion_tokens, record.discarded_tokens, record.cost) == (48, 42, 48)
        assert remaining(await g.complete(max_tokens=10), "output-tokens") == [1000 - 48 - 10]
        page = (await g.client.get("/metrics")).text
        assert 'serve_app_completion_tokens_total{endpoint="demo",entity="demo"} 96.0' in page


@pytest.mark.parametrize(
    ("error", "requests", "tokens"),
    [
        (Overloaded("full"), 10, 0),
        (GenerationFailed("broke"), 10, 0),
        (RuntimeError("a bug"), 10, 0),
        (InvalidField("n", "no"), 9, 70),
        (PromptTooLong(None, "too long"), 9, 70),
        (DeadlineExceeded("late"), 9, 70),
    ],
)
async def test_only_our_own_failures_are_free(error: Exception, requests: int, tokens: int) -> None:
    backend = FakeBackend(fail_after=0, failure=error, progress=Usage(prompt_tokens=70))
    async with gateway(backend, endpoints=limited(**ALL)) as g:
        assert (await g.chat(max_tokens=40)).status_code >= 400
        assert g.journal.records[0].outcome == "failed"
        assert g.journal.records[0].prompt_tokens == 70  # the work is written down in any case
        backend.fail_after = backend.failure = backend.progress = None
        after = await g.chat(max_tokens=10)
        prompt = prompt_tokens(Prompt(messages=({"role": "user", "content": "Hello!"},)))
        assert remaining(after, "requests", "input-tokens") == [requests - 1, 1000 - tokens - prompt]


async def test_a_beam_search_reserves_all_of_its_beams() -> None:
    async with gateway(endpoints=limited(output_tokens_per_minute=100)) as g:
        body = {"use_beam_search": True, "best_of": 4, "n": 1, "temperature": 0}
        assert remaining(await g.complete(max_tokens=20, **body), "output-tokens") == [20]


async def test_a_client_that_leaves_pays_what_it_got() -> None:
    backend = FakeBackend(hang_after=2)
    async with gateway(backend, endpoints=limited(output_tokens_per_minute=50)) as g:
        async with served(g.app) as (host, port):
            reader, writer = await asyncio.open_connection(host, port)
            body = (
                b'{"model":"demo","stream":true,"max_tokens":50,"messages":[{"role":"user","content":"Hi"}]}'
            )
            head = f"POST {CHAT} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            writer.write(head + body)
            await reader.readuntil(b"aus")
            writer.close()
            async with asyncio.timeout(60):
                await backend.closed.wait()
                while g.journal.open:
                    await asyncio.sleep(0.01)
        (record,) = g.journal.records
        assert (record.outcome, record.completion_tokens, record.status) == ("aborted", 2, 200)
        backend.hang_after = None
        left = (await g.chat(max_tokens=10)).headers["x-ratelimit-remaining-output-tokens"]
        assert int(left) == 50 - 2 - 10


async def test_bought_throughput_admits_up_to_its_burst() -> None:
    bought = {
        "name": "demo",
        "kind": "provisioned_throughput",
        "burst_s": 10,
        "served_entities": [{"model": "demo", "max_provisioned_throughput": 10}],
    }
    async with gateway(FakeBackend(hang_after=0), keys=KEYS, endpoints=[bought]) as g:
        running = [
            asyncio.ensure_future(g.post(CHAT, chat_body(max_tokens=40), headers=bearer(key)))
            for key in (ALICE, BOB)
        ]
        while g.backend.running < 2:
            await asyncio.sleep(0)
        refused = await g.post(CHAT, chat_body(max_tokens=40), headers=bearer(BOB))  # one budget for all keys
        assert refused.status_code == 429
        assert "600 tokens a minute" in refused.json()["error"]["message"]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        g.backend.hang_after = None
        huge = await g.post(CHAT, chat_body(max_tokens=5_000), headers=bearer(ALICE))
        assert huge.status_code in (200, 429)  # takes the whole burst, when that is there


async def test_every_end_of_a_request_is_one_record() -> None:
    async with gateway(
        endpoints=[{"name": "demo", "price": {"input_per_million": 1e6, "output_per_million": 1e6}}]
    ) as g:
        await g.chat()
        await g.chat(stream=True, n=2)
        await g.complete(prompt=["a", "b", "c"])
        g.backend.fail_after, g.backend.failure = 1, RuntimeError()
        await g.chat(stream=True)
        records = g.journal.records
        assert [record.outcome for record in records] == ["finished"] * 3 + ["failed"]
        assert len({record.id for record in records}) == 4
        assert not g.journal.open
        first = records[0]
        assert (first.endpoint, first.entity, first.key_id) == ("demo", "demo", "anonymous")
        assert (first.kind, first.route, first.status) == ("pay_per_token", CHAT, 200)
        assert (first.prompt_tokens, first.cached_tokens) == (PROMPT_TOKENS, CACHED_TOKENS)
        assert first.completion_tokens == len(WORDS)
        assert (first.cost, first.currency) == (PROMPT_TOKENS + len(WORDS), "USD")
        assert first.queue_s == 0.01
        assert first.first_token_s == 0.02
        assert records[1].completion_tokens == 2 * len(WORDS)
        assert records[2].prompt_tokens == 3 * PROMPT_TOKENS
        assert records[3].completion_tokens == 1


async def test_the_record_counts_the_replicas_that_its_answers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GeneratedStream, "migrations", 2)
    async with gateway() as g:
        await g.chat(stream=True)
        await g.complete(prompt=["a", "b", "c"])
        assert [record.migrations for record in g.journal.records] == [2, 6]


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (Prompt(token_ids=(1, 2, 3)), 3),
        (Prompt(text="x" * 9), 3),
        (Prompt(text="ü" * 4), 2),
        (Prompt(text="abcd", suffix="efgh"), 2),
        (Prompt(messages=({"role": "user", "content": "x" * 36},)), 14),
    ],
)
def test_the_estimate_of_a_prompt(prompt: Prompt, tokens: int) -> None:
    assert prompt_tokens(prompt) == tokens


def test_cached_tokens_may_have_a_price_of_their_own() -> None:
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=2)
    assert cost(Price(input_per_million=1e6, output_per_million=3e6), usage) == 16
    assert cost(Price(input_per_million=1e6, cached_input_per_million=5e5), usage) == 8


@pytest.mark.parametrize(("seconds", "said"), [(0.25, "250ms"), (6.2, "6s"), (90, "1m30s"), (0, "0ms")])
def test_durations_are_written_as_openai_does(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_tighter_token_budget_is_repeated_for_clients_that_know_one() -> None:
    budgets = [
        Budget(unit="input-tokens", limit=100, remaining=90, reset_s=1),
        Budget(unit="output-tokens", limit=10, remaining=5, reset_s=2),
    ]
    headers = dict(budget_headers(budgets, None))
    assert headers[b"x-ratelimit-limit-tokens"] == b"10"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"5"
    assert budget_headers([], None) == []
