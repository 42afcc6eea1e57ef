"""Every row of the table of errors, in the shape of one string."""

from __future__ import annotations

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
from tests.conformance.ovms.asks import PATH, ask
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import chat_body, gateway

module_loop = pytest.mark.asyncio(loop_scope="module")

MALFORMED = {
    "empty": b"",
    "cut": b'{"model": ',
    "unquoted-key": b'{"model": "m", "messages": [{"role": "user", "content": "x"}], stream: false}',
    "list": b"[]",
    "null": b"null",
    "byte-order-mark": b"\xef\xbb\xbf{}",
    "nan": b'{"unknown": NaN}',
    "not-utf-8": b'{"model": "\xff"}',
}


def check_shape(answer: httpx.Response) -> str:
    """The message, which is all there is."""
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert list(found) == ["error"]
    assert type(found["error"]) is str
    return str(found["error"])


@module_loop
@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
async def test_e1_a_body_that_is_no_json_object(client: httpx.AsyncClient, raw: bytes) -> None:
    answer = await client.post(PATH, content=raw)
    assert answer.status_code == 400
    check_shape(answer)


@module_loop
async def test_e2_a_field_names_itself_and_its_bounds(client: httpx.AsyncClient) -> None:
    answer = await ask(client, temperature=2.5)
    assert answer.status_code == 400
    assert check_shape(answer) == "temperature: must be a number from 0 to 2"


@module_loop
async def test_e3_an_unknown_model(client: httpx.AsyncClient) -> None:
    answer = await ask(client, model="no-such-model")
    assert answer.status_code == 404
    check_shape(answer)
    page = await client.get("/v3/models/no-such-model")
    assert page.status_code == 404
    check_shape(page)


async def test_e4_a_version_that_the_endpoint_has_not() -> None:
    router, line = new_key("router", [Scope.INFERENCE, Scope.ROUTING])
    async with gateway(keys=line) as g:
        headers = {"authorization": f"Bearer {router}", "x-served-entity": "demo-9"}
        answer = await g.post(PATH, chat_body(), headers=headers)
        assert answer.status_code == 404
        check_shape(answer)


@module_loop
async def test_e5_a_prompt_beyond_the_window(client: httpx.AsyncClient) -> None:
    window = (await client.get(f"/v3/models/{conftest.MODEL}")).json()["max_model_len"]
    messages = [{"role": "user", "content": "7 " * window}]
    answer = await ask(client, messages=messages)
    assert answer.status_code == 400
    check_shape(answer)
    assert (await ask(client, messages=messages, truncate_prompt_tokens=-1)).status_code == 200


@module_loop
async def test_e13_a_wrong_method(client: httpx.AsyncClient) -> None:
    answer = await client.get(PATH)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    check_shape(answer)


@module_loop
async def test_e15_an_unknown_route(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v3/nothing", json={})
    assert answer.status_code == 404
    check_shape(answer)


@module_loop
async def test_the_words_of_a_model_about_a_field_are_the_clients(client: httpx.AsyncClient) -> None:
    answer = await ask(client, logit_bias={"99999999": 1})
    assert answer.status_code == 400
    assert "logit_bias" in check_shape(answer)


ROWS: dict[str, tuple[ServeError, int]] = {
    "e5": (PromptTooLong("prompt: too long", param="prompt"), 400),
    "e7": (QuotaExceeded("too much"), 429),
    "e8": (Overloaded("full"), 503),
    "e9": (Unavailable("loading"), 503),
    "e10": (DeadlineExceeded("timeout"), 504),
    "e11": (EngineRefused("no"), 500),
    "e12": (GenerationFailed("failed"), 500),
    "e12-numbers": (NumericalError("failed"), 500),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("error", "status"), ROWS.values(), ids=ROWS.keys())
async def test_errors_before_the_first_byte(error: ServeError, status: int, stream: bool) -> None:
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = await g.post(PATH, chat_body(stream=stream))
        assert answer.status_code == status
        check_shape(answer)
        assert ("retry-after" in answer.headers) is (status in (429, 503))
        await g.check()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_after_the_first_word(stream: bool) -> None:
    async with gateway(FakeBackend(fail_after=2, failure=GenerationFailed("the engine failed"))) as g:
        answer = await g.post(PATH, chat_body(stream=stream))
        if stream:
            assert answer.status_code == 200
            assert answer.content.endswith(b'\n\ndata: {"error":"the engine failed"}\n\ndata: [DONE]\n\n')
            assert b'"finish_reason":"' not in answer.content
        await g.check()


async def test_e6_a_missing_key_and_one_without_the_right() -> None:
    (_, line), (scraper, other) = new_key("somebody"), new_key("scraper", [Scope.METRICS])
    async with gateway(keys=f"{line} {other}") as g:
        answer = await g.post(PATH, chat_body())
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        check_shape(answer)
        forbidden = await g.post(PATH, chat_body(), headers={"authorization": f"Bearer {scraper}"})
        assert forbidden.status_code == 403
        check_shape(forbidden)


async def test_e9_a_model_that_loads() -> None:
    async with gateway(FakeBackend(loading={"demo"})) as g:
        for answer in (await g.post(PATH, chat_body()), await g.client.get("/v3/models/demo")):
            assert answer.status_code == 503
            check_shape(answer)


async def test_e14_a_body_that_is_too_large() -> None:
    async with gateway() as g:
        answer = await g.client.post(PATH, content=b" " * (MAX_BODY_BYTES + 1))
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")
        check_shape(answer)


async def test_a_model_that_does_not_generate_text_or_does_not_chat() -> None:
    entities = [{"model": "demo"}]
    endpoints = [{"name": "embedder", "task": "llm/v1/embeddings", "served_entities": entities},
                 {"name": "writer", "task": "llm/v1/completions", "served_entities": entities}]  # fmt: skip
    async with gateway(endpoints=endpoints) as g:
        for name in ("embedder", "writer"):
            answer = await g.post(PATH, chat_body(model=name))
            assert answer.status_code == 400
            assert "task" in check_shape(answer)
        assert (await g.post("/v3/completions", {"model": "writer", "prompt": "x"})).status_code == 200


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_json_status_may_be_the_products(raw: bytes) -> None:
    async with gateway(ovms={"malformed_json_status": 412}) as g:
        answer = await g.client.post(PATH, content=raw)
        assert answer.status_code == 412
        check_shape(answer)
        assert (await g.post(PATH, chat_body(temperature=9))).status_code == 400
