"""POST /v1/embeddings over a deterministic backend: its exchange, budgets, errors and the answer's bytes."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest

from serve_app import limits
from serve_app.accounts.keys import new_key
from serve_app.api.dialects.chat.embeddings import Encoding, answer, parse_inputs
from serve_app.api.protocol.embed_call import PIECE_NUMBERS
from serve_app.errors import GenerationFailed, InvalidField, NumericalError, Overloaded, Unavailable
from serve_app.types import Embeddings, EmbedRequest, Tensor
from tests.support.fakes_backend import (
    PROMPT_TOKENS,
    FakeBackend,
    embedder_info,
    embeddings_of,
    model_info,
)
from tests.support.gateway import CHAT, Gateway, chat_body, gateway

PATH = "/v1/embeddings"
TASK = "llm/v1/embeddings"
ENDPOINTS = [{"name": "embedder", "task": TASK}, {"name": "demo"}]


def backend(**fields: Any) -> FakeBackend:
    return FakeBackend(infos=[embedder_info(), model_info()], **fields)


async def post(g: Gateway, **fields: Any) -> Any:
    return await g.post(PATH, {"model": "embedder", "input": "Köln", **fields})


def expected(*inputs: Any, dimensions: int | None = None) -> list[list[float]]:
    found = embeddings_of(EmbedRequest(id="", inputs=inputs, dimensions=dimensions)).vectors
    rows: list[list[float]] = np.frombuffer(found.data, "<f4").reshape(found.shape).tolist()
    return rows


async def test_the_answer_is_openais_shape() -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        reply = await post(g, input=["a", "bcd"])
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["content-length"] == str(len(reply.content))
        assert reply.headers["served-model-name"] == "embedder"
        rows = expected("a", "bcd")
        assert reply.json() == {
            "object": "list",
            "model": "embedder",
            "data": [
                {"object": "embedding", "index": 0, "embedding": rows[0]},
                {"object": "embedding", "index": 1, "embedding": rows[1]},
            ],
            "usage": {"prompt_tokens": 2 * PROMPT_TOKENS, "total_tokens": 2 * PROMPT_TOKENS},
        }


@pytest.mark.parametrize(
    ("sent", "inputs"),
    [
        ("Köln", ("Köln",)),
        (["a", "b"], ("a", "b")),
        ([1, 2, 3.0], ((1, 2, 3),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
    ids=str,
)
async def test_every_form_of_input_arrives(sent: Any, inputs: Any) -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        assert (await post(g, input=sent)).status_code == 200
        [question] = g.backend.questions
        assert isinstance(question, EmbedRequest)
        assert question.inputs == inputs
        assert (question.instruction, question.dimensions, question.truncate) == (None, None, False)
        assert question.timeout_s == 600


@pytest.mark.parametrize("encoding_format", ["float", "base64", None])
async def test_encoding_format_writes_the_same_numbers(encoding_format: str | None) -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        reply = await post(g, encoding_format=encoding_format)
        [entry] = reply.json()["data"]
        vector = entry["embedding"]
        if encoding_format == "base64":
            vector = np.frombuffer(base64.b64decode(vector), "<f4").tolist()
        assert vector == expected("Köln")[0]


async def test_dimensions_are_passed_on() -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        reply = await post(g, dimensions=3)
        assert reply.json()["data"][0]["embedding"] == expected("Köln", dimensions=3)[0]


async def test_as_many_inputs_as_allowed_are_answered() -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        count = limits.MAX_EMBED_INPUTS
        reply = await post(g, input=["a"] * count)
        assert [entry["index"] for entry in reply.json()["data"]] == list(range(count))


def test_a_long_answer_comes_in_pieces_and_is_whole() -> None:
    vectors = np.arange(3 * 40_000, dtype="<f4").reshape(3, -1)
    tensor = Tensor(dtype="FP32", shape=vectors.shape, data=vectors.tobytes())
    embeddings = Embeddings(vectors=tensor, prompt_tokens=9)
    for encoding in Encoding:
        pieces = list(answer({"object": "list"}, embeddings, encoding))
        assert len(pieces) == 2 + 3
        body = json.loads(b"".join(pieces))
        assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
        assert body["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


async def test_large_vectors_are_streamed_to_the_client() -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        reply = await post(g, input=["a"], dimensions=PIECE_NUMBERS + 1)
        assert "content-length" not in reply.headers
        assert len(reply.json()["data"][0]["embedding"]) == PIECE_NUMBERS + 1


async def test_an_answer_beyond_all_bounds_is_refused_before_it_is_made() -> None:
    large = embedder_info()
    size = limits.MAX_EMBEDDED_NUMBERS // 2
    object.__setattr__(large, "dimensions", size)
    async with gateway(FakeBackend(infos=[large]), endpoints=ENDPOINTS[:1]) as g:
        reply = await post(g, input=["a"] * 3)
        assert reply.status_code == 400
        assert "at most 2 texts" in reply.json()["error"]["message"]
        assert g.backend.questions == []


async def test_a_task_that_does_not_fit_is_an_error_both_ways() -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        chat = await g.post(CHAT, {**chat_body(), "model": "embedder"})
        assert chat.status_code == 400
        assert chat.json()["error"]["message"] == f"model: the endpoint's task is {TASK}, not llm/v1/chat"
        embed = await post(g, model="demo")
        assert embed.status_code == 400
        assert embed.json()["error"]["param"] == "model"
        unknown = await post(g, model="nobody")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_generator_behind_an_embedding_endpoint_is_told() -> None:
    endpoints = [{"name": "wrong", "task": TASK, "served_entities": [{"model": "demo"}]}]
    async with gateway(backend(), endpoints=endpoints) as g:
        reply = await post(g, model="wrong")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize(
    ("refuse", "status"),
    [
        (Overloaded("full"), 503),
        (Unavailable("loading"), 503),
        (GenerationFailed("no"), 500),
        (NumericalError("nan"), 500),
        (InvalidField("dimensions", "must be from 1 to 8"), 400),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_the_model_refuses_is_told_in_openais_words(refuse: Any, status: int) -> None:
    async with gateway(backend(refuse=refuse), endpoints=ENDPOINTS) as g:
        reply = await post(g)
        assert reply.status_code == status
        assert reply.json()["error"]["param"] == refuse.param
        assert [record.outcome for record in g.journal.records] == ["failed"]
        assert g.journal.records[0].status == status
        await g.check()


async def test_another_entity_answers_when_the_first_fails() -> None:
    entities = [{"model": "embedder", "name": "a"}, {"model": "second", "name": "b"}]
    endpoints = [
        {"name": "both", "task": TASK, "served_entities": entities, "traffic": {"a": 100, "b": 0}},
        {"name": "demo"},
    ]

    class Half(FakeBackend):
        async def ask(self, app: str, question: Any) -> Any:
            if app == "model-embedder":
                raise Unavailable("down")
            return await super().ask(app, question)

    infos = [embedder_info(), embedder_info("second"), model_info()]
    async with gateway(Half(infos=infos), endpoints=endpoints) as g:
        reply = await post(g, model="both")
        assert reply.status_code == 200
        assert (reply.headers["served-model-name"], reply.json()["model"]) == ("b", "b")
        assert g.journal.records[0].entity == "b"


async def test_a_budget_reserves_by_estimate_and_settles_at_what_it_was() -> None:
    endpoints = [{**ENDPOINTS[0], "limits": {"input_tokens_per_minute": 1000}}, ENDPOINTS[1]]
    async with gateway(backend(), endpoints=endpoints) as g:
        first = await post(g, input=["x" * 400, "y" * 400])
        assert first.headers["x-ratelimit-remaining-input-tokens"] == "800"
        second = await post(g, input=[[1, 2, 3]])
        assert second.headers["x-ratelimit-remaining-input-tokens"] == str(1000 - 2 * PROMPT_TOKENS - 3)
        too_large = await post(g, input="z" * 8000)
        assert too_large.status_code == 429
        records = g.journal.records
        assert [(r.prompt_tokens, r.completion_tokens) for r in records] == [
            (2 * PROMPT_TOKENS, 0),
            (PROMPT_TOKENS, 0),
        ]
        assert {(r.endpoint, r.outcome, r.status) for r in records} == {("embedder", "finished", 200)}


async def test_a_deadline_is_an_error_and_takes_the_question_back() -> None:
    async with gateway(backend(hang_after=0), endpoints=ENDPOINTS) as g:
        reply = await post(g, timeout=0.5)
        assert reply.status_code == 504
        assert len(g.backend.aborted) == 1
        await g.check()


async def test_a_client_that_leaves_takes_its_question_back() -> None:
    async with gateway(backend(hang_after=0), endpoints=ENDPOINTS) as g:
        task = asyncio.ensure_future(post(g))
        while not g.backend.running:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(g.backend.closed.wait(), 60)
        assert len(g.backend.aborted) == 1
        assert [record.outcome for record in g.journal.records] == ["aborted"]
        await g.check()


async def test_a_stranger_may_not_embed() -> None:
    _, line = new_key("alice")
    async with gateway(backend(), keys=line, endpoints=ENDPOINTS) as g:
        assert (await post(g)).status_code == 401
        assert g.backend.questions == []


async def test_unknown_fields_are_listed_and_tokens_are_counted_in_metrics() -> None:
    async with gateway(backend(), endpoints=ENDPOINTS) as g:
        reply = await post(g, input_type="query", other=None)
        assert reply.headers["x-ignored-fields"] == "input_type"
        page = await g.client.get("/metrics")
        counted = [line for line in page.text.splitlines() if "prompt_tokens" in line and "embedder" in line]
        assert counted
        assert counted[0].endswith(f" {PROMPT_TOKENS}.0")


def test_token_ids_are_only_for_protocols_that_have_them() -> None:
    assert parse_inputs([1, 2]) == ((1, 2),)
    for value in ([1, 2], [[1]]):
        with pytest.raises(InvalidField, match="must be a string, a list of strings, and not be empty"):
            parse_inputs(value, token_ids=False)
