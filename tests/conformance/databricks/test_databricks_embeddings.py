"""The embedding task: what a body may hold, the bytes of answers, and a real model's vectors."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from serve_app.types import EmbedRequest
from tests.conformance import fields
from tests.conformance.fields import Bounds
from tests.conformance.target import demo_app
from tests.support.fakes_backend import PROMPT_TOKENS, FakeBackend, embedder_info, embeddings_of, model_info
from tests.support.gateway import Gateway, gateway

PATH = "/serving-endpoints/shore/invocations"
SHORE: dict[str, Any] = {
    "name": "shore",
    "task": "llm/v1/embeddings",
    "served_entities": [{"name": "shore-embed", "model": "embedder"}],
}
ENDPOINTS = [SHORE, {"name": "demo"}]

BOUNDS: Bounds = {
    "input": (
        ["x", ["x"], ["x", "y"], ["x"] * 2_048],
        [None, "", [], [""], ["x", ""], 5, [5], [[1, 2]], [1, 2], {}, ["x", None], ["x"] * 2_049],
    ),
    "instruction": (["", "Represent this:", None], [5, ["x"]]),
    "encoding_format": (["float", "base64", None], ["int8", "", 5]),
    "dimensions": ([1, 8, None], [0, -1, 1.5, "8"]),
    "user": (["me", None], ["x" * 513, 5]),
    "client_request_id": (["r", None], [5]),
    "usage_context": ([{"a": "b"}, None], [{"a": 5}]),
    "extra_params": ([{"dimensions": "4"}, None], [{"dimensions": 4}]),
    "model": (["nobody", None], []),  # ignored where the path names the endpoint
}


def embedder(**members: Any) -> FakeBackend:
    return FakeBackend(infos=[embedder_info(), model_info()], **members)


async def post(g: Gateway, **members: Any) -> Any:
    return await g.post(PATH, {"input": "quay", **members})


def asked(g: Gateway) -> EmbedRequest:
    question = g.backend.questions[-1]
    if not isinstance(question, EmbedRequest):
        raise AssertionError(question)
    return question


@pytest.mark.parametrize(("field", "value"), fields.accepted(BOUNDS))
async def test_what_is_inside_its_range_is_accepted(field: str, value: Any) -> None:
    async with gateway(embedder(), endpoints=ENDPOINTS) as g:
        answer = await post(g, **{field: value})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("field", "value"), fields.refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(field: str, value: Any) -> None:
    async with gateway(embedder(), endpoints=ENDPOINTS) as g:
        answer = await post(g, **{field: value})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"
        assert field in answer.json()["message"]
        assert not g.backend.questions
        await g.check()


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "stream", "n", "nonsense"])
async def test_fields_of_other_tasks_are_unknown(name: str) -> None:
    async with gateway(embedder(), endpoints=ENDPOINTS) as g:
        answer = await post(g, **{name: 1})
        assert answer.status_code == 400
        told = f'json: unknown field "{name}"'
        assert (answer.json()["error_code"], answer.json()["message"]) == ("BAD_REQUEST", told)


@pytest.mark.parametrize("body", [{"messages": [{"role": "user", "content": "x"}]}, {"prompt": "x"}])
async def test_a_body_of_another_task_is_a_mismatch(body: dict[str, Any]) -> None:
    async with gateway(embedder(), endpoints=ENDPOINTS) as g:
        answers = [await g.post(PATH, body)]
        answers.append(await g.post("/serving-endpoints/embeddings", {"model": "demo", "input": "x"}))
        for answer in answers:
            assert (answer.status_code, answer.json()["error_code"]) == (400, "BAD_REQUEST")
            assert "task is llm/v1/" in answer.json()["message"]


async def test_the_defaults_and_what_reaches_the_model() -> None:
    async with gateway(embedder(), endpoints=ENDPOINTS) as g:
        for empty in (None, ""):
            await post(g, instruction=empty)
            assert (asked(g).inputs, asked(g).instruction, asked(g).dimensions) == (("quay",), None, None)
        await post(g, input=["a", "b"], instruction="Represent:", extra_params={"dimensions": "3"})
        assert (asked(g).inputs, asked(g).instruction, asked(g).dimensions) == (("a", "b"), "Represent:", 3)


async def test_the_worked_example() -> None:
    body = {"input": ["quay", "pier"], "instruction": "Represent this sentence:"}
    async with gateway(embedder(), endpoints=ENDPOINTS) as g:
        answer = await g.post(PATH, body)
        by_model = await g.post("/serving-endpoints/embeddings", {**body, "model": "shore"})
    assert answer.headers["served-model-name"] == "shore-embed"
    shape = r'{"id":"embd-[0-9a-f]+","object":"list","model":"shore-embed","data":\[(.*)\],"usage":(.*)}'
    found = re.fullmatch(shape, answer.text)
    assert found is not None, answer.text
    entries = json.loads(f"[{found[1]}]")
    assert [list(entry) for entry in entries] == [["object", "index", "embedding"]] * 2
    assert [(entry["object"], entry["index"]) for entry in entries] == [("embedding", 0), ("embedding", 1)]
    told = embeddings_of(EmbedRequest(id="", inputs=("quay", "pier"))).vectors
    assert np.asarray([entry["embedding"] for entry in entries], "<f4").tobytes() == told.data
    tokens = 2 * PROMPT_TOKENS
    assert found[2] == f'{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}'  # no completion_tokens
    assert by_model.json()["data"] == entries


async def test_encoding_format_base64_holds_the_same_numbers() -> None:
    async with gateway(embedder(), endpoints=ENDPOINTS) as g:
        (plain,) = (await post(g)).json()["data"]
        (packed,) = (await post(g, encoding_format="base64")).json()["data"]
    assert np.frombuffer(base64.b64decode(packed["embedding"]), "<f4").tolist() == plain["embedding"]


# --- a real model ------------------------------------------------------------------------------

MODEL = "demo-embed"
TEXTS = ["quay", "The ship lies at the pier.", "A cat sleeps."]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def own() -> AsyncIterator[httpx.AsyncClient]:
    endpoints = [{"name": "shore", "task": "llm/v1/embeddings", "served_entities": [{"model": MODEL}]}]
    async with demo_app(endpoints, MODEL, None) as app:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client


async def embed(own: httpx.AsyncClient, **members: Any) -> Any:
    answer = await own.post(PATH, json=members)
    if answer.status_code != 200:
        raise AssertionError(answer.text)
    return answer.json()


def rows(answer: Any) -> Any:
    return np.asarray([entry["embedding"] for entry in answer["data"]])


@pytest.mark.asyncio(loop_scope="module")
async def test_a_vector_depends_on_its_own_text_alone(own: httpx.AsyncClient) -> None:
    batch = rows(await embed(own, input=TEXTS))
    np.testing.assert_allclose(np.linalg.norm(batch, axis=1), 1.0, atol=1e-3)
    crowd = await asyncio.gather(*(embed(own, input=TEXTS[i % 3]) for i in range(8)))
    for i, answer in enumerate(crowd):
        assert float(rows(answer)[0] @ batch[i % 3]) > 1 - 1e-3


@pytest.mark.asyncio(loop_scope="module")
async def test_an_instruction_goes_before_every_input_with_a_space(own: httpx.AsyncClient) -> None:
    plain = await embed(own, input=TEXTS)
    told = await embed(own, input=TEXTS, instruction="Find ships:")
    joined = await embed(own, input=[f"Find ships: {text}" for text in TEXTS])
    spaced = await embed(own, input=TEXTS, instruction="Find ships: ")
    np.testing.assert_allclose(rows(told), rows(joined), atol=1e-5)
    np.testing.assert_allclose(rows(told), rows(spaced), atol=1e-5)
    assert told["usage"] == joined["usage"]
    assert told["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]
    assert not np.allclose(rows(told), rows(plain), atol=1e-3)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_text_beyond_the_window_is_refused(own: httpx.AsyncClient) -> None:
    answer = await own.post(PATH, json={"input": "sea " * 5_000})
    assert (answer.status_code, answer.json()["error_code"]) == (400, "BAD_REQUEST")
