"""Errors of this protocol alone: its pages, a setting of the product, prompts that may be cut."""

from __future__ import annotations

import httpx
import pytest

from serve_app.errors import GenerationFailed
from tests.conformance import conftest
from tests.conformance.errors.test_conditions import MALFORMED
from tests.conformance.ovms.asks import PATH, ask
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import chat_body, gateway

module_loop = pytest.mark.asyncio(loop_scope="module")


def check_shape(answer: httpx.Response) -> str:
    """The message, which is all there is."""
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert list(found) == ["error"]
    assert type(found["error"]) is str
    return str(found["error"])


@module_loop
async def test_e3_a_page_of_an_unknown_model(client: httpx.AsyncClient) -> None:
    page = await client.get("/v3/models/no-such-model")
    assert page.status_code == 404
    check_shape(page)


async def test_e9_a_page_of_a_model_that_loads() -> None:
    async with gateway(FakeBackend(loading={"demo"})) as g:
        page = await g.client.get("/v3/models/demo")
        assert page.status_code == 503
        check_shape(page)


@module_loop
async def test_e5_a_prompt_beyond_the_window_may_be_truncated(client: httpx.AsyncClient) -> None:
    window = (await client.get(f"/v3/models/{conftest.MODEL}")).json()["max_model_len"]
    messages = [{"role": "user", "content": "7 " * window}]
    assert (await ask(client, messages=messages, truncate_prompt_tokens=-1)).status_code == 200


@module_loop
async def test_the_words_of_a_model_about_a_field_are_the_clients(client: httpx.AsyncClient) -> None:
    answer = await ask(client, logit_bias={"99999999": 1})
    assert answer.status_code == 400
    assert "logit_bias" in check_shape(answer)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_while_an_answer_is_made(stream: bool) -> None:
    """A whole answer arrives in one step, so it fails before that."""
    failure = GenerationFailed("the engine failed")
    async with gateway(FakeBackend(fail_after=2 if stream else 0, failure=failure)) as g:
        answer = await g.post(PATH, chat_body(stream=stream))
        if stream:
            assert answer.status_code == 200
            assert answer.content.endswith(b'\n\ndata: {"error":"the engine failed"}\n\ndata: [DONE]\n\n')
            assert b'"finish_reason":"' not in answer.content
        else:
            assert answer.status_code == 500
            assert check_shape(answer) == "the engine failed"
        await g.check()


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
