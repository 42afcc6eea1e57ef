"""Shadow traffic: copies that change no answer, delay none, cost nothing and end with the gateway."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from serve_app.errors import GenerationFailed, ServeError
from serve_app.limits import MAX_PRIORITY
from serve_app.types import GenerateRequest, Question, TokenDelta
from serve_app.types.question import ReplyT
from tests.support.fakes_backend import FakeBackend, embedder_info, model_info
from tests.support.gateway import Gateway, gateway
from tests.support.streams import streamed

SHADOW = {"entity": "new", "percentage": 100}


@dataclass
class TwoModels(FakeBackend):
    """Two models; `of_shadow` says what happens to requests of the second one."""

    of_shadow: ServeError | asyncio.Event | None = None
    copies: list[Any] = field(default_factory=list)

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        if request.model.endswith("2"):
            self.copies.append(request)
            await self._meet()
        stream = super().generate(request)
        with contextlib.closing(stream):
            while deltas := await stream.get():
                yield deltas

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        if app.endswith("2"):
            self.copies.append(question)
            await self._meet()
        return await super().ask(app, question)

    async def _meet(self) -> None:
        if isinstance(self.of_shadow, ServeError):
            raise self.of_shadow
        if self.of_shadow is not None:
            await self.of_shadow.wait()


@contextlib.asynccontextmanager
async def shadowed(
    of_shadow: ServeError | asyncio.Event | None = None, shadow: dict[str, Any] | None = SHADOW, **more: Any
) -> AsyncIterator[Gateway]:
    infos = [model_info("demo", "1"), model_info("demo", "2")]
    infos += [embedder_info("embed-1"), embedder_info("embed-2")]
    backend = TwoModels(infos=infos, of_shadow=of_shadow)
    versions = [
        {"model": "demo", "version": "1", "name": "old"},
        {"model": "demo", "version": "2", "name": "new"},
    ]
    embedders = [{"model": "embed-1", "name": "old"}, {"model": "embed-2", "name": "new"}]
    traffic = {"old": 100, "new": 0}
    endpoints = [
        {
            "name": "demo",
            "served_entities": versions,
            "traffic": traffic,
            "fallback": False,
            "shadow": shadow,
            "price": {"input_per_million": 1.0, "output_per_million": 1.0},
            "limits": {"requests_per_minute": 10, "output_tokens_per_minute": 10_000},
            **more,
        },
        {
            "name": "embed",
            "task": "llm/v1/embeddings",
            "served_entities": embedders,
            "traffic": traffic,
            "shadow": shadow,
        },
    ]
    async with gateway(backend=backend, endpoints=endpoints) as found:
        yield found


async def settled(found: Gateway) -> None:
    """Once no copy runs."""
    while found.journal.open:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}
TEXT = {"model": "demo", "prompt": "Once"}
EMBED = {"model": "embed", "input": ["one", "two"]}
REQUESTS = [
    ("/v1/chat/completions", {**CHAT, "stream": True}, {}),
    ("/v1/chat/completions", {**CHAT, "n": 2}, {}),
    ("/v1/completions", {**TEXT, "prompt": ["Once", "Twice"]}, {}),
    ("/v1/embeddings", EMBED, {}),
    ("/serving-endpoints/demo/invocations", {"messages": CHAT["messages"], "stream": True}, {}),
    ("/serving-endpoints/embed/invocations", {"input": "one"}, {}),
    ("/v3/chat/completions", CHAT, {}),
    ("/v3/embeddings", EMBED, {}),
    ("/v1/chat/completions", {**CHAT, "stream": True}, {"X-API-Dialect": "mindie"}),
    ("/v2/models/demo/generate", {"text_input": "Once", "max_tokens": 6}, {"X-API-Dialect": "triton"}),
    (
        "/v2/models/demo/generate_stream",
        {"text_input": "Once", "max_tokens": 6, "stream": True},
        {"X-API-Dialect": "triton"},
    ),
]


@pytest.mark.parametrize("of_shadow", [None, GenerationFailed("broken")], ids=["answers", "fails"])
@pytest.mark.parametrize(("path", "body", "headers"), REQUESTS, ids=lambda each: str(each)[:60])
async def test_an_answer_is_the_same_with_and_without_a_shadow(
    path: str,
    body: Any,
    headers: dict[str, str],
    of_shadow: ServeError | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size=16: "5" * 2 * size)
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    told = []
    for shadow in (None, SHADOW):
        async with shadowed(of_shadow, shadow) as found:
            answer = await found.client.post(path, json=body, headers=headers)
            await settled(found)
            assert answer.status_code == 200, answer.text
            told.append((answer.headers.raw, answer.content))
            copies = [record for record in found.journal.records if record.shadow]
            assert len(copies) == (shadow is not None)
            if shadow is not None:
                assert copies[0].entity == "new"
                assert copies[0].outcome == ("finished" if of_shadow is None else "failed")
    assert told[0] == told[1]


async def test_a_copy_is_recorded_apart_and_costs_nothing() -> None:
    async with shadowed() as found:
        answer = await found.chat()
        await settled(found)
        own, copy = sorted(found.journal.records, key=lambda record: record.shadow)
        assert (own.entity, own.shadow) == ("old", False)
        assert own.cost is not None
        assert own.cost > 0
        assert (copy.entity, copy.shadow, copy.id) == ("new", True, f"{own.id}-shadow")
        assert (copy.cost, copy.currency, copy.status, copy.outcome) == (None, None, 200, "finished")
        assert copy.completion_tokens == own.completion_tokens > 0
        assert copy.first_token_s is not None
        assert int(answer.headers["x-ratelimit-remaining-requests"]) == 9
        again = await found.chat()
        assert int(again.headers["x-ratelimit-remaining-requests"]) == 8  # the copy drew none
        await settled(found)
        request = found.backend.copies[0]  # type: ignore[attr-defined]
        assert request.priority == -MAX_PRIORITY - 1
        assert request.record is None
        metrics = (await found.client.get("/metrics")).text
        assert (
            'serve_app_shadow_requests_total{endpoint="demo",entity="new",outcome="finished"} 2.0' in metrics
        )
        assert 'serve_app_requests_total{endpoint="demo",entity="new"' not in metrics
        assert 'serve_app_completion_tokens_total{endpoint="demo",entity="new"' not in metrics


async def test_an_answer_does_not_wait_for_its_copy() -> None:
    never = asyncio.Event()
    async with shadowed(never) as found:
        async with asyncio.timeout(60):
            assert (await found.chat(stream=True)).status_code == 200
        assert [record.entity for record in found.journal.records] == ["old"]
        never.set()
        await settled(found)
        assert [record.outcome for record in found.journal.records] == ["finished", "finished"]


async def test_copies_are_bounded() -> None:
    never = asyncio.Event()
    async with shadowed(never, {**SHADOW, "max_concurrent": 2}) as found:
        for _ in range(5):
            assert (await found.chat()).status_code == 200
        assert len(found.journal.open) == 2
        metrics = (await found.client.get("/metrics")).text
        assert (
            'serve_app_shadow_requests_total{endpoint="demo",entity="new",outcome="skipped"} 3.0' in metrics
        )
        never.set()
        await settled(found)
        assert sum(record.shadow for record in found.journal.records) == 2


async def test_a_gateway_that_drains_ends_its_copies_and_makes_none() -> None:
    async with shadowed(asyncio.Event()) as found:
        await found.chat()
        await asyncio.sleep(0)
        services = found.app.state.services
        assert services.copies.under_way("demo") == 1
        services.admission.close()
        await settled(found)
        assert found.journal.records[-1].shadow
        assert found.journal.records[-1].outcome == "aborted"
        assert services.copies.under_way("demo") == 0
        assert not services.copies.start("demo", 8, asyncio.Event().wait)  # type: ignore[arg-type]


async def test_a_copy_has_the_deadline_of_its_request() -> None:
    async with shadowed(asyncio.Event()) as found:
        await found.client.post("/v1/chat/completions", json={**CHAT, "timeout": 0.5})
        await settled(found)
        copy = found.journal.records[-1]
        assert (copy.shadow, copy.outcome, copy.status) == (True, "failed", 504)


@pytest.mark.parametrize("percentage", [0, 30])
async def test_a_share_of_the_requests_is_copied(percentage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([0.0, 0.299, 0.3, 0.9])
    monkeypatch.setattr("serve_app.api.exchange.shadow.random.random", lambda: next(draws))
    async with shadowed(None, {**SHADOW, "percentage": percentage}) as found:
        for _ in range(4):
            await found.chat()
            await settled(found)
        assert sum(record.shadow for record in found.journal.records) == (2 if percentage else 0)


async def test_what_the_shadow_answers_itself_is_not_copied() -> None:
    async with shadowed(traffic={"old": 0, "new": 100}) as found:
        await found.chat()
        await settled(found)
        assert [record.shadow for record in found.journal.records] == [False]


async def test_a_request_that_fails_is_not_copied() -> None:
    async with shadowed() as found:
        found.backend.refuse = GenerationFailed("broken")
        assert (await found.chat()).status_code == 500
        await settled(found)
        assert [record.shadow for record in found.journal.records] == [False]


async def test_entities_that_failed_before_another_answered_are_recorded() -> None:
    broken = GenerationFailed("broken")
    async with shadowed(broken, None, traffic={"old": 0, "new": 100}, fallback=True) as found:
        answer: httpx.Response = await found.chat()
        assert answer.headers["served-model-name"] == "old"
        record = found.journal.records[-1]
        assert (record.entity, record.failed_over) == ("old", ("new",))
        await found.client.post("/v1/chat/completions", json=CHAT)
