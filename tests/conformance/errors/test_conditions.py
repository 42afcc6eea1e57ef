"""Conditions E1 to E15 on every route, each answered in its protocol's own words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import (
    DeadlineExceeded,
    EngineRefused,
    GenerationFailed,
    NumericalError,
    Overloaded,
    PromptTooLong,
    QuotaExceeded,
    ServeError,
    Unavailable,
)
from serve_app.limits import MAX_BODY_BYTES
from serve_app.types import Scope
from tests.conformance import conftest
from tests.conformance.errors.protocols import MINDIE_CHAT
from tests.conformance.errors.routes import CHATS, EMBEDS, GENERATING, ROUTES, Route
from tests.support.fakes_backend import FakeBackend, embedder_info, model_info
from tests.support.gateway import Gateway, gateway

pytestmark = pytest.mark.all_combinations

module_loop = pytest.mark.asyncio(loop_scope="module")
each_route = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())

MALFORMED: Final = {
    "empty": b"",
    "cut": b'{"model": ',
    "unquoted-key": b"{stream: false}",
    "list": b"[]",
    "null": b"null",
    "number": b"5",
    "byte-order-mark": b'\xef\xbb\xbf{"model": "demo"}',
    "nan": b'{"unknown": NaN}',
    "nan-below": b'{"unknown": [NaN]}',
    "not-utf-8": b'{"model": "\xff"}',
}
OF_THE_MODEL: Final[dict[str, tuple[str, ServeError]]] = {
    "e5": ("E5", PromptTooLong("prompt", "too long")),
    "e7": ("E7", QuotaExceeded("too much", retry_after_s=3)),
    "e8": ("E8", Overloaded("full")),
    "e9": ("E9", Unavailable("loading")),
    "e10": ("E10", DeadlineExceeded("late")),
    "e11": ("E11", EngineRefused("no")),
    "e12": ("E12", GenerationFailed("failed")),
    "e12-numbers": ("E12", NumericalError("failed")),
}


@asynccontextmanager
async def serving(
    limits: dict[str, int] | None = None, keys: str = "", **members: Any
) -> AsyncIterator[Gateway]:
    """A gateway with an endpoint that chats and one that embeds. `members`: of the backend."""
    backend = FakeBackend(infos=[model_info(CHATS), embedder_info(EMBEDS)], **members)
    endpoints: list[dict[str, Any]] = [{"name": CHATS}, {"name": EMBEDS, "task": "llm/v1/embeddings"}]
    if limits is not None:
        endpoints = [{**each, "limits": limits} for each in endpoints]
    async with gateway(backend, keys=keys, endpoints=endpoints) as g:
        yield g


# --- asked of any server -------------------------------------------------------------------------


@module_loop
@each_route
async def test_e1_a_body_that_is_no_json_object(client: httpx.AsyncClient, route: Route) -> None:
    for kind, raw in MALFORMED.items():
        answer = await route.post(client, raw, conftest.MODEL)
        assert "JSON" in route.protocol.told(answer, "E1"), kind


@module_loop
@each_route
async def test_e2_a_field_names_itself_and_its_bounds(client: httpx.AsyncClient, route: Route) -> None:
    fields, message = route.wrong
    answer = await route.ask(client, conftest.MODEL, **fields)
    assert route.protocol.told(answer, "E2") == message


@module_loop
@each_route
async def test_e3_an_unknown_model(client: httpx.AsyncClient, route: Route) -> None:
    message = route.protocol.told(await route.ask(client, "no-such-model"), "E3")
    assert ("no-such-model" in message) is (route.protocol is MINDIE_CHAT)


@module_loop
@pytest.mark.parametrize("route", GENERATING.values(), ids=GENERATING.keys())
async def test_e5_a_prompt_beyond_the_window(client: httpx.AsyncClient, route: Route) -> None:
    window = (await client.get(f"/openai/v1/models/{conftest.MODEL}")).json()["max_model_len"]
    answer = await route.ask(client, conftest.MODEL, **{route.prompt: route.long(window)})
    route.protocol.told(answer, "E5")


@module_loop
@each_route
async def test_e13_a_wrong_method(client: httpx.AsyncClient, route: Route) -> None:
    path = route.path.format(model=conftest.MODEL)
    for method in ("GET", "DELETE"):
        answer = await client.request(method, path, headers=route.headers)
        route.protocol.told(answer, "E13")
        assert answer.headers["allow"] == "POST"


@module_loop
@each_route
async def test_e15_an_unknown_route(client: httpx.AsyncClient, route: Route) -> None:
    path = route.unknown.replace("{path}", route.path)
    route.protocol.told(await route.ask(client, conftest.MODEL, path=path), "E15")
    answer = await client.get(path.format(model=conftest.MODEL), headers=route.headers)
    route.protocol.told(answer, "E15")


# --- asked of a gateway whose backend plays a part -----------------------------------------------


@each_route
async def test_e3_an_entity_and_e4_a_version_that_the_endpoint_has_not(route: Route) -> None:
    router, line = new_key("router", [Scope.INFERENCE, Scope.ROUTING])
    key = {"authorization": f"Bearer {router}"}
    async with serving(keys=line) as g:
        for path in route.unknown_versions:
            answer = await route.post(g.client, route.body(route.model), path=path, **key)
            route.protocol.told(answer, "E4")
        answer = await route.post(g.client, route.body(route.model), **key, **{"x-served-entity": "demo-9"})
        route.protocol.told(answer, "E4")
        assert (await route.post(g.client, route.body(route.model), **key)).status_code == 200


@each_route
@pytest.mark.parametrize(("condition", "error"), OF_THE_MODEL.values(), ids=OF_THE_MODEL.keys())
async def test_errors_before_the_first_byte(route: Route, condition: str, error: ServeError) -> None:
    async with serving(refuse=error) as g:
        if route.embeds and isinstance(error, PromptTooLong):
            g.backend.refuse = PromptTooLong("input", "too long")
        for stream in (True, False) if route.streams else (None,):
            answer = await route.ask(g.client, **({} if stream is None else {"stream": stream}))
            message = route.protocol.told(answer, condition)
            said = error.message.replace(
                "prompt:", f"{route.blamed or route.prompt}:"
            )  # as the client calls it
            assert message == route.protocol.begins.get(condition, "") + said
            assert ("retry-after" in answer.headers) is (answer.status_code in (429, 503, 529))
        await g.check()


@each_route
async def test_e6_a_missing_key_a_wrong_one_and_one_without_the_right(route: Route) -> None:
    (_, line), (scraper, other) = new_key("somebody"), new_key("scraper", [Scope.METRICS])
    async with serving(keys=f"{line} {other}") as g:
        for headers in ({}, {"authorization": "Bearer sk-wrong"}):
            answer = await route.post(g.client, route.body(route.model), **headers)
            route.protocol.told(answer, "E6")
            assert answer.headers["www-authenticate"] == "Bearer"
        answer = await route.post(g.client, route.body(route.model), authorization=f"Bearer {scraper}")
        route.protocol.told(answer, "E6b")


@each_route
async def test_e7_a_quota_that_is_used_up(route: Route) -> None:
    async with serving(limits={"requests_per_minute": 1}) as g:
        assert (await route.ask(g.client)).status_code == 200
        answer = await route.ask(g.client)
        route.protocol.told(answer, "E7")
        assert int(answer.headers["retry-after"]) >= 1


@each_route
async def test_e9_a_model_that_loads(route: Route) -> None:
    async with serving(loading={route.model}) as g:
        route.protocol.told(await route.ask(g.client), "E9")


@each_route
async def test_e14_a_body_that_is_too_large(route: Route) -> None:
    async with serving() as g:
        answer = await route.post(g.client, b" " * (route.largest + 1))
        assert f"must not exceed {MAX_BODY_BYTES} bytes" in route.protocol.told(answer, "E14")
        assert answer.headers["connection"] == "close"
