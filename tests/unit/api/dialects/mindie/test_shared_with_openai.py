"""Whose chat below /v1 is: an endpoint may say otherwise than the gateway, header and prefix than both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from serve_app.accounts.keys import new_key
from serve_app.types.control.endpoints import Grant
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import CHAT, Gateway, bearer, chat_body, gateway

OWN: Final = {"openai": "mindie", "mindie": "openai"}  # the gateway's protocol -> that of the endpoint `own`


def endpoints(gateways: str) -> list[dict[str, Any]]:
    models = [{"model": "demo"}]
    return [
        {"name": "plain", "served_entities": models},
        {"name": "own", "served_entities": models, "v1_dialect": OWN[gateways]},
    ]


def backend() -> FakeBackend:
    return FakeBackend(infos=[replace(model_info(), adapters=("pirate",))])


async def spoken(g: Gateway, model: str, path: str = CHAT, **headers: str) -> set[str]:
    """The protocols of a whole answer, a stream and a refusal."""
    whole = await g.post(path, chat_body(model=model), headers=headers)
    stream = await g.post(path, chat_body(model=model, stream=True), headers=headers)
    refused = await g.post(path, chat_body(model=model, temperature=9), headers=headers)
    assert whole.status_code == stream.status_code == 200
    charset = stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    return {
        "openai" if "system_fingerprint" in whole.json() else "mindie",
        "openai" if charset else "mindie",
        {400: "openai", 422: "mindie"}[refused.status_code],
        "mindie" if isinstance(refused.json()["error"], str) else "openai",
    }


@pytest.mark.parametrize("gateways", OWN)
async def test_an_endpoint_may_have_its_own(gateways: str) -> None:
    async with gateway(backend(), endpoints=endpoints(gateways), v1_dialect=gateways) as g:
        assert await spoken(g, "plain") == {gateways}
        assert await spoken(g, "own") == {OWN[gateways]}
        if OWN[gateways] == "openai":  # names of MindIE's models have no colon
            assert await spoken(g, "own:pirate") == {"openai"}


@pytest.mark.parametrize("forced", OWN)
async def test_header_and_prefix_go_before_the_endpoint(forced: str) -> None:
    for gateways in OWN:
        async with gateway(endpoints=endpoints(gateways), v1_dialect=gateways) as g:
            assert await spoken(g, "own", f"/{forced}{CHAT}") == {forced}
            assert await spoken(g, "own", **{"x-api-dialect": forced}) == {forced}


@pytest.mark.parametrize("gateways", OWN)
@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"\xff", b'{"model": 5}', b'{"model": "nobodys", "messages": []}', b"[" * 10_000]
)
async def test_a_body_that_names_no_endpoint_is_the_gateways(gateways: str, body: bytes) -> None:
    async with gateway(endpoints=endpoints(gateways), v1_dialect=gateways) as g:
        answer = await g.client.post(CHAT, content=body)
    async with gateway(endpoints=endpoints(gateways)[:1], v1_dialect=gateways) as g:
        plain = await g.client.post(CHAT, content=body)
    assert (answer.status_code, answer.text) == (plain.status_code, plain.text)
    assert answer.status_code >= 400


async def test_other_routes_do_not_ask_the_endpoint() -> None:
    async with gateway(endpoints=endpoints("openai")) as g:
        assert "system_fingerprint" in (await g.post("/openai/v1/completions", completion("own"))).json()
        assert "system_fingerprint" in (await g.post("/v1/completions", completion("own"))).json()
        refused = await g.post("/v3/chat/completions", chat_body(model="own", temperature=9))
        assert refused.status_code != 422


def completion(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": "Once"}


async def test_an_endpoint_that_a_key_may_not_use_tells_nothing() -> None:
    key, line = new_key("alice")
    async with gateway(endpoints=endpoints("openai"), keys=line) as g:
        g.directory.permit({"own": [Grant(principal="bob", kind="user_name", level="CAN_QUERY")]})
        hidden, unknown = [
            await g.post(CHAT, chat_body(model=model, temperature=9), headers=bearer(key))
            for model in ("own", "nobodys")
        ]
    assert (hidden.status_code, hidden.json()) == (unknown.status_code, unknown.json())
