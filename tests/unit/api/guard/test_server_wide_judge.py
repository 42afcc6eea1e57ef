"""`guardrails_model` of the gateway judges for every endpoint that names no model of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.endpoints.rules import app_name
from tests.support.gateway import CHAT, bearer
from tests.support.whole_service import whole_service
from tests.unit.api.guard.test_guardrails import (
    JUDGE,
    JUDGED,
    ROUTES,
    STREAMS,
    Scripted,
    by_words,
    chat,
    guarded,
)
from tests.unit.api.management.managed import ROOT

KEYS = "/api/2.0/keys"
SAFETY: dict[str, Any] = {"guardrails": {"input": {"safety": True}}}


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_it_judges_where_an_endpoint_names_no_model(name: str, stream: bool) -> None:
    path, body = (STREAMS if stream else ROUTES)[name]
    options = {"stream": True} if stream else {}
    backend = Scripted(verdict=by_words)
    async with guarded(input=JUDGED, backend=backend, model=None, guardrails_model=JUDGE) as (g, _):
        assert (await g.post(path, body("Build a bomb", **options))).status_code in (400, 422)
        assert (len(backend.judged), backend.prompts) == (1, [])
        assert (await g.post(path, body("Where is Paris?", **options))).status_code == 200
        assert len(backend.judged) == 3  # and once about topics
        assert len(backend.prompts) == 1


async def test_it_judges_answers() -> None:
    backend = Scripted(verdict=by_words)
    async with guarded(
        output={"safety": True}, backend=backend, text="a bomb", model=None, guardrails_model=JUDGE
    ) as (g, _):
        (choice,) = (await g.post(CHAT, chat("Hi"))).json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("content_filter", "")


@pytest.mark.parametrize(("own", "status"), [(JUDGE, 200), ("nobody", 503)])
async def test_an_endpoints_own_model_goes_first(own: str, status: int) -> None:
    other = "nobody" if own == JUDGE else JUDGE
    backend = Scripted(verdict=by_words)
    async with guarded(input=JUDGED, backend=backend, model=own, guardrails_model=other) as (g, _):
        assert (await g.post(CHAT, chat("Where is Paris?"))).status_code == status
        assert bool(backend.judged) is (status == 200)


@pytest.mark.parametrize("judge", [None, "nobody"])
async def test_what_nobody_judges_does_not_pass(judge: str | None) -> None:
    """An endpoint of run time keeps its guardrails when the operator takes the judge away."""
    async with guarded(input={"safety": True}, model=None, guardrails_model=judge) as (g, backend):
        answer = await g.post(CHAT, chat("Hi"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "safety" in answer.json()["error"]["message"]
        assert backend.prompts == []


async def test_a_limited_key_uses_it_without_being_granted_it(tmp_path: Path) -> None:
    async with whole_service(tmp_path, guardrails_model=JUDGE) as service:
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            scopes = ["inference", "manage"]
            made = await client.post(KEYS, json={"name": "admin", "scopes": scopes})
            admin = bearer(made.json()["key"])
            limited = {"name": "team", "scopes": scopes, "endpoints": ["mine"]}
            made = await client.post(KEYS, json=limited, headers=admin)
            key = bearer(made.json()["key"])
            config = {"served_entities": [{"entity_name": "demo"}]}
            await client.post(ROOT, json={"name": "mine", "config": config}, headers=key)
            async with asyncio.timeout(60):
                while (await client.get(f"{ROOT}/mine", headers=key)).json()["state"]["ready"] != "READY":
                    await asyncio.sleep(0.02)
            put = await client.put(f"{ROOT}/mine/ai-gateway", json=SAFETY, headers=key)
            assert put.status_code == 200, put.text
            assert (await client.post(CHAT, json=chat("Hi", model=JUDGE), headers=key)).status_code == 404
            service.backend.words = ("unsafe",)
            blocked = await client.post(CHAT, json=chat("Hi", model="mine"), headers=key)
            assert (blocked.status_code, blocked.json()["error"]["code"]) == (400, "content_filter")
            service.backend.words = ("safe",)
            assert (await client.post(CHAT, json=chat("Hi", model="mine"), headers=key)).status_code == 200
            asked = [each.model for each in service.backend.requests]
            assert asked == [app_name(JUDGE), app_name(JUDGE), app_name("demo")]
