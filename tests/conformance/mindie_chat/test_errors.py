"""Every row of the table of errors that chat can meet, in MindIE's shape."""

from __future__ import annotations

import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import ServeError
from serve_app.limits import MAX_BODY_BYTES
from serve_app.types import Scope
from tests.conformance.mindie_errors import MALFORMED, ROWS, told
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import CHAT, chat_body, gateway

PATH = "/mindie" + CHAT
INVALID = "Input Validation Error"


@pytest.mark.parametrize("raw", MALFORMED)
async def test_e1_a_body_that_is_no_json_object(raw: bytes) -> None:
    async with gateway() as g:
        told(await g.client.post(PATH, content=raw), 422, INVALID, "JSON")


async def test_e2_a_field_names_itself_and_its_bounds() -> None:
    async with gateway() as g:
        told(await g.post(PATH, chat_body(temperature=0)), 422, INVALID, "temperature", "above 0 and up to 2")


async def test_e3_an_unknown_model_is_a_wrong_field_of_the_body() -> None:
    async with gateway() as g:
        told(await g.post(PATH, chat_body(model="nobody")), 422, INVALID, "nobody")


async def test_e3_an_unknown_served_entity_is_a_wrong_field_too() -> None:
    router, line = new_key("router", [Scope.INFERENCE, Scope.ROUTING])
    async with gateway(keys=line) as g:
        headers = {"authorization": f"Bearer {router}", "x-served-entity": "demo-9"}
        told(await g.post(PATH, chat_body(), headers=headers), 422, INVALID)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("error", "status", "kind"), ROWS.values(), ids=ROWS.keys())
async def test_errors_before_the_first_byte(error: ServeError, status: int, kind: str, stream: bool) -> None:
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = await g.post(PATH, chat_body(stream=stream))
        told(answer, status, kind)
        assert ("retry-after" in answer.headers) is (status in (429, 503))
        await g.check()


async def test_e6_a_missing_key_and_one_without_the_right() -> None:
    (_, line), (scraper, other) = new_key("somebody"), new_key("scraper", [Scope.METRICS])
    async with gateway(keys=f"{line} {other}") as g:
        answer = await g.post(PATH, chat_body())
        told(answer, 401, "Unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        answer = await g.post(PATH, chat_body(), headers={"authorization": f"Bearer {scraper}"})
        told(answer, 403, "Forbidden")


async def test_e7_a_quota_that_is_used_up() -> None:
    limited = {"name": "demo", "limits": {"requests_per_minute": 1}}
    async with gateway(endpoints=[limited]) as g:
        assert (await g.post(PATH, chat_body())).status_code == 200
        answer = await g.post(PATH, chat_body())
        told(answer, 429, "Overloaded")
        assert int(answer.headers["retry-after"]) >= 1


async def test_e9_a_model_that_loads() -> None:
    async with gateway(FakeBackend(loading={"demo"})) as g:
        told(await g.post(PATH, chat_body()), 503, "Service Unavailable")


async def test_e13_a_wrong_method_and_e15_an_unknown_route() -> None:
    async with gateway() as g:
        answer = await g.client.get(PATH)
        told(answer, 405, "Method Not Allowed")
        assert answer.headers["allow"] == "POST"
        told(await g.post("/mindie/v1/nothing", {}), 404, "NotFoundError")


async def test_e14_a_body_that_is_too_large() -> None:
    async with gateway() as g:
        answer = await g.client.post(PATH, content=b" " * (MAX_BODY_BYTES + 1))
        told(answer, 422, INVALID, f"{MAX_BODY_BYTES} bytes")
        assert answer.headers["connection"] == "close"
