"""Where a key may stand in a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serve_app.accounts.keys import new_key
from tests.support.gateway import CHAT, bearer, chat_body, gateway


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer KEY"}, 200),
        ({"x-api-key": "KEY"}, 200),
        ({"x-api-key": "sk-another"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "unused", "authorization": "Bearer KEY"}, 200),
        ({"x-api-key": "KEY", "authorization": "Bearer sk-another"}, 401),
        ({"x-api-key": "Bearer KEY"}, 401),
        ({}, 401),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v2", "/serving-endpoints/anthropic/v1/models"])
async def test_a_key_may_come_as_x_api_key(path: str, headers: dict[str, str], status: int) -> None:
    """Anthropic's clients send it so; `Authorization` goes first, as in Databricks' examples."""
    key, line = new_key("somebody")
    async with gateway(keys=line) as g:
        sent = {name: value.replace("KEY", key) for name, value in headers.items()}
        found = await g.client.get(path, headers=sent)
    assert found.status_code == status
    assert key not in found.text


REBOUND = "rebound.example"  # a name of somebody else, made to lead here
ASKED = [
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("GET", "/api/2.0/serving-endpoints"),
    ("GET", "/serving-endpoints/models"),
    ("GET", "/v2"),
    ("GET", "/v3/models"),
    ("GET", "/openapi.json"),
    ("GET", "/no/such/route"),
    ("POST", CHAT),
    ("POST", "/v1/messages"),
    ("POST", "/mindie/v1/chat/completions"),
]


async def answered(method: str, path: str, host: str, keys: str = "", **settings: Any) -> httpx.Response:
    """The answer to a request that names the server `host`."""
    async with gateway(keys=keys, **settings) as g:
        body = chat_body() if method == "POST" else None
        answer = await g.client.request(method, path, json=body, headers={"host": host})
        if answer.status_code == 403:
            assert not g.backend.requests
        return answer


@pytest.mark.parametrize(("method", "path"), ASKED)
@pytest.mark.parametrize(
    "host", [REBOUND, f"{REBOUND}:8000", "localhost.rebound.example", "127.0.0.1.nip.io", "x."]
)
async def test_without_keys_a_name_of_somebody_else_is_refused(method: str, path: str, host: str) -> None:
    """DNS rebinding: to a browser, a page of that name is of the same origin as the server."""
    answer = await answered(method, path, host, allowed_hosts=())
    assert answer.status_code == 403
    assert "allowed_hosts" in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "127.0.0.1:8000", "10.1.2.3", "[::1]:8000", "", "models:8000"]
)
async def test_without_keys_the_server_is_asked_by_its_own_names(host: str) -> None:
    assert (await answered("GET", "/v1/models", host, allowed_hosts=())).status_code == 200


async def test_a_name_may_be_allowed() -> None:
    for host, status in (("models.internal:80", 200), ("MODELS.internal", 200), ("other.internal", 403)):
        answer = await answered("GET", "/v1/models", host, allowed_hosts=("Models.Internal",))
        assert answer.status_code == status


async def test_with_keys_any_name_leads_here_and_probes_need_none() -> None:
    key, line = new_key("somebody")
    async with gateway(keys=line, allowed_hosts=()) as g:
        answer = await g.client.get("/v1/models", headers={"host": REBOUND, **bearer(key)})
        assert answer.status_code == 200
    for path in ("/livez", "/readyz", "/health"):
        assert (await answered("GET", path, REBOUND, allowed_hosts=())).status_code == 200


async def test_a_probe_by_another_name_gets_no_reasons() -> None:
    endpoints = [{"name": "demo", "served_entities": [{"model": "lost"}]}]
    for host, told in (("localhost", True), (REBOUND, False)):
        answer = await answered("GET", "/readyz", host, endpoints=endpoints, allowed_hosts=())
        assert answer.status_code == 503
        assert ("reasons" in answer.json()) is told
