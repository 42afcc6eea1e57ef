"""Pages of other origins: none by default, and those that a setting lists."""

from __future__ import annotations

import pytest

from serve_app.accounts.keys import new_key
from serve_app.config import GatewayConfig
from tests.support.gateway import CHAT, bearer, chat_body, events, gateway

APP = "https://app.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


async def test_no_other_origin_may_ask_by_default() -> None:
    async with gateway() as g:
        asked = await g.client.options(CHAT, headers={"origin": APP, **PREFLIGHT})
        answer = await g.client.post(CHAT, json=chat_body(), headers={"origin": APP})
    assert asked.status_code == 405
    assert not [name for name in (*asked.headers, *answer.headers) if name.startswith("access-control")]


async def test_a_listed_origin_asks_streams_and_reads_errors() -> None:
    key, line = new_key("somebody")
    async with gateway(keys=line, cors_origins=(APP,)) as g:
        asked = await g.client.options(CHAT, headers={"origin": APP, **PREFLIGHT})
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, APP)
        assert "x-stainless-lang" in asked.headers["access-control-allow-headers"]
        assert "POST" in asked.headers["access-control-allow-methods"]
        headers = {"origin": APP, **bearer(key)}
        answer = await g.client.post(CHAT, json=chat_body(stream=True), headers=headers)
        assert events(answer.text)
        refused = await g.client.post(CHAT, json=chat_body(), headers={"origin": APP})
        assert refused.status_code == 401
        for each in (answer, refused):
            assert each.headers["access-control-allow-origin"] == APP
            assert each.headers["access-control-expose-headers"] == "*"
            assert "access-control-allow-credentials" not in each.headers


async def test_other_origins_and_the_console_are_left_out() -> None:
    async with gateway(cors_origins=(APP,)) as g:
        other = {"origin": "https://other.example"}
        asked = await g.client.options(CHAT, headers={**other, **PREFLIGHT})
        answer = await g.client.post(CHAT, json=chat_body(), headers=other)
        page = await g.client.get("/console", headers={"origin": APP})
    assert asked.status_code == 400
    for each in (asked, answer, page):
        assert "access-control-allow-origin" not in each.headers


async def test_any_origin_may_be_allowed() -> None:
    async with gateway(cors_origins=("*",)) as g:
        answer = await g.client.get("/v1/models", headers={"origin": "null"})
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://", "https://a b", "https://*.x"]
)
def test_an_origin_has_a_scheme_and_no_path(origin: str) -> None:
    with pytest.raises(ValueError, match="cors_origins"):
        GatewayConfig(cors_origins=(origin,))


@pytest.mark.parametrize("host", ["http://a", "a:80", "", "a/b", "*.a"])
def test_an_allowed_host_is_a_name_without_a_port(host: str) -> None:
    with pytest.raises(ValueError, match="allowed_hosts"):
        GatewayConfig(allowed_hosts=(host,))
