"""POST /v3/rerank: documents in the order of their likeness to a query."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from serve_app.config import ModelConfig
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.ovms.asks import names
from tests.conformance.ovms.test_embeddings import embedding_gateway
from tests.support.fakes_backend import embeddings_of
from tests.support.gateway import Gateway
from tests.support.local_model import local_model

PATH = "/v3/rerank"
QUERY = "What is the capital of Norway?"
DOCUMENTS = [
    "Good morning!",
    "Tell me the capital city of Norway.",
    "What is 12 plus 30?",
]

BOUNDS: Bounds = {
    "model": ([], [None, 5, "", "x" * 257]),
    "query": (["x"], [None, "", 5, ["x"], [1, 2]]),
    "documents": (
        [["a"], ["a", "b"], ["x"] * 2047],
        [None, [], "a", [""], ["a", 5], [{"text": "a"}], ["x"] * 2048],
    ),
    "top_n": ([1, 2, 2**31 - 1, None], [0, -1, 1.5, "1", True]),
    "return_documents": ([True, False, None], [1, "true"]),
}


@pytest.fixture(scope="module")
def demo_embed() -> Iterator[str]:
    """The address of a server with the demo model that embeds."""
    with local_model(ModelConfig(name="demo-embed", dtype="float32", threads=1)) as url:
        yield url


async def ask(g: Gateway, **fields: Any) -> Any:
    return await g.post(PATH, {"model": "vectors", "query": QUERY, "documents": DOCUMENTS, **fields})


@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(field: str, value: Any) -> None:
    async with embedding_gateway() as g:
        found = await ask(g, **{field: value})
        assert found.status_code == 200, found.text


@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(field: str, value: Any) -> None:
    async with embedding_gateway() as g:
        names(await ask(g, **{field: value}), field)


async def test_results_are_by_index_and_relevance_score_and_the_best_comes_first() -> None:
    async with embedding_gateway() as g:
        found = (await ask(g)).json()
        asked = g.backend.questions[-1]
    vectors = np.frombuffer(embeddings_of(asked).vectors.data, "<f4").reshape(4, -1).astype(float)
    query, *others = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert asked.inputs == (QUERY, *DOCUMENTS)
    assert list(found) == ["results"]
    assert {tuple(result) for result in found["results"]} == {("index", "relevance_score")}
    scores = {result["index"]: result["relevance_score"] for result in found["results"]}
    assert sorted(scores) == [0, 1, 2]
    assert [scores[index] for index in range(3)] == pytest.approx([query @ other for other in others])
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


async def test_top_n_keeps_the_best_and_more_than_there_are_keeps_all() -> None:
    async with embedding_gateway() as g:
        every = (await ask(g)).json()["results"]
        assert (await ask(g, top_n=2)).json()["results"] == every[:2]
        assert (await ask(g, top_n=99)).json()["results"] == every


async def test_return_documents_adds_the_document_with_its_text() -> None:
    async with embedding_gateway() as g:
        found = (await ask(g, return_documents=True)).json()["results"]
    assert all(result["document"] == {"text": DOCUMENTS[result["index"]]} for result in found)


async def test_equal_documents_stay_in_their_order(demo_embed: str) -> None:
    async with httpx.AsyncClient(base_url=demo_embed, timeout=60) as client:
        body = {"model": "demo-embed", "query": QUERY, "documents": ["a", DOCUMENTS[1], "a", "a"]}
        found = (await client.post(PATH, json=body)).json()["results"]
    assert [result["index"] for result in found] == [1, 0, 2, 3]


async def test_a_model_that_embeds_ranks_by_meaning(demo_embed: str) -> None:
    async with httpx.AsyncClient(base_url=demo_embed, timeout=60) as client:
        body = {"model": "demo-embed", "query": QUERY, "documents": DOCUMENTS}
        alone = (await client.post("/v3/v1/rerank", json=body)).json()
        crowd = await asyncio.gather(*(client.post(PATH, json=body) for _ in range(8)))
        long = await client.post(PATH, json={**body, "documents": ["word " * 2_000]})
    best, *rest = alone["results"]
    assert best["index"] == 1
    assert best["relevance_score"] > 0.7 > 0.5 > max(result["relevance_score"] for result in rest)
    for answer in crowd:
        for one, other in zip(answer.json()["results"], alone["results"], strict=True):
            assert one["index"] == other["index"]
            assert one["relevance_score"] == pytest.approx(other["relevance_score"], abs=1e-5)
    assert long.status_code == 400
    assert "documents" in long.json()["error"]
    assert "Please reduce the length of the text" in long.json()["error"]


async def test_errors_have_this_protocols_shape() -> None:
    async with embedding_gateway(ovms={"malformed_json_status": 412}) as g:
        for answer, status in [
            (await ask(g, model="nobody"), 404),
            (await ask(g, model="talk"), 400),
            (await g.client.post(PATH, content=b"{"), 412),
            (await g.client.get(PATH), 405),
            (await g.client.post("/v1/rerank", json={}), 404),  # another protocol's base
        ]:
            assert answer.status_code == status
            assert answer.json()["error"]
