"""POST /v1/embeddings of OpenAI over demo-embed: shape, bytes, bounds, defaults, errors, sameness."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio

from recipes.demo_chat.words import Pool
from recipes.demo_embed.meanings import INTENTS, draw, ways_of
from serve_app.config import EngineConfig, ModelConfig
from serve_app.models.catalogue import demo_folder
from serve_app.replica.embedding.server import EmbeddingServer
from tests.conformance import conftest
from tests.conformance.fields import Bounds, accepted, refused
from tests.support.gateway import chat_body, directory_of, fake_app
from tests.support.local_backend import LocalBackend

PATH = "/v1/embeddings"
DEMO = "demo-embed"
MODEL = conftest.TARGET.model if conftest.TARGET.url else DEMO
SIZE = 128
WINDOW = 256
pytestmark = pytest.mark.asyncio(loop_scope="module")
own_server = pytest.mark.own_server

NO_EMBEDDER = "--model names none that embeds"
PARIS = ("What is the capital of France?", "Tell me the capital city of France.")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedder() -> AsyncIterator[httpx.AsyncClient]:
    """HTTP to the server that is asked, or to demo-embed in this process, its batches small."""
    if conftest.TARGET.url:
        async with conftest.TARGET.client() as connected:
            page = (await connected.get(f"/v1/models/{MODEL}")).json()
            if page.get("task") != "llm/v1/embeddings":
                pytest.skip(NO_EMBEDDER)
            yield connected
        return
    engine = EngineConfig(max_step_tokens=128, max_sequences=16)
    config = ModelConfig(name=MODEL, dtype="float32", threads=1, engine=engine)
    server: Any = await EmbeddingServer.start(config, lambda _: None)
    backend: Any = LocalBackend(server)
    endpoints = [{"name": MODEL, "task": "llm/v1/embeddings"}]
    app = fake_app(backend, directory=directory_of(backend, endpoints))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as connected:
        yield connected
    await server.stop()


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(PATH, json={"model": MODEL, "input": "Hello!", **fields})


def vectors(reply: httpx.Response) -> npt.NDArray[np.float32]:
    assert reply.status_code == 200, reply.text
    return np.asarray([entry["embedding"] for entry in reply.json()["data"]], np.float32)


def some_texts(count: int, seed: int) -> list[str]:
    pool = Pool(seed, held=True)
    drawn = [draw(pool) for _ in range(count)]
    said = [meaning.say(pool.pick(ways_of(meaning, held=True))) for meaning in drawn]
    return [text * pool.pick((1, 1, 1, 6)) for text in said]


# --- shape and bytes -------------------------------------------------------------------


async def test_worked_example_of_shape(embedder: httpx.AsyncClient) -> None:
    reply = await ask(embedder, input=["quay", "pier"])
    body = reply.json()
    assert list(body) == ["object", "model", "data", "usage"]
    assert (body["object"], body["model"]) == ("list", MODEL)
    for index, entry in enumerate(body["data"]):
        assert list(entry) == ["object", "index", "embedding"]
        assert (entry["object"], entry["index"]) == ("embedding", index)
        assert all(type(value) is float for value in entry["embedding"])
    usage = body["usage"]
    assert set(usage) == {"prompt_tokens", "total_tokens"}
    assert usage["prompt_tokens"] == usage["total_tokens"] >= 2
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["served-model-name"] == MODEL


async def test_worked_example_of_bytes(embedder: httpx.AsyncClient) -> None:
    raw = (await ask(embedder, dimensions=1)).content
    sign = "" if json.loads(raw)["data"][0]["embedding"][0] > 0 else "-"
    tokens = json.loads(raw)["usage"]["prompt_tokens"]
    assert raw.decode() == (
        f'{{"object":"list","model":"{MODEL}","data":[{{"object":"embedding","index":0,'
        f'"embedding":[{sign}1.0]}}],"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}}}'
    )


async def test_usage_counts_every_token_of_every_input(embedder: httpx.AsyncClient) -> None:
    reply = await ask(embedder, input=[[5], [6, 7, 8]])
    assert reply.json()["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


# --- fields ----------------------------------------------------------------------------

BOUNDS: Bounds = {
    "model": ([MODEL], [None, 5, "", "x" * 257]),
    "input": (
        ["x", ["x"], ["a", "b"], [1], [1, 2.0], [[1], [2, 3]], ["x"] * 2048, [[7]] * 2048,
         pytest.param([7] * WINDOW, marks=own_server)],
        [None, "", [], [""], ["a", 5], [[1], "a"], [[]], {}, 5, True, [-1], [1.5], [True], ["x"] * 2049,
         pytest.param([3072], marks=own_server), pytest.param([7] * (WINDOW + 1), marks=own_server)],
    ),
    "encoding_format": (["float", "base64", None], ["", "int8", "FLOAT", 5, ["float"]]),
    "dimensions": (
        [1, 2.0, pytest.param(SIZE, marks=own_server), None],
        [0, -1, pytest.param(SIZE + 1, marks=own_server), 65_537, 1.5, "1", True],
    ),
    "user": (["", "ann", "x" * 512, None], ["x" * 513, 5]),
    "timeout": ([60, 3600, None], [0, -1, 3600.1, "1", True]),
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    embedder: httpx.AsyncClient, field: str, value: Any
) -> None:
    reply = await ask(embedder, **{field: value})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(
    embedder: httpx.AsyncClient, field: str, value: Any
) -> None:
    reply = await ask(embedder, **{field: value})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert error["message"].startswith(f"{field}:")


async def test_default_of_encoding_format_is_float(embedder: httpx.AsyncClient) -> None:
    assert (await ask(embedder)).content == (await ask(embedder, encoding_format="float")).content


@own_server
async def test_default_of_dimensions_is_all(embedder: httpx.AsyncClient) -> None:
    assert vectors(await ask(embedder)).shape == (1, SIZE)
    assert (await ask(embedder)).content == (await ask(embedder, dimensions=SIZE)).content


async def test_encoding_format_base64_holds_the_same_numbers(embedder: httpx.AsyncClient) -> None:
    entries = (await ask(embedder, input=["a", "b"], encoding_format="base64")).json()["data"]
    packed = [np.frombuffer(base64.b64decode(entry["embedding"]), "<f4") for entry in entries]
    np.testing.assert_array_equal(packed, vectors(await ask(embedder, input=["a", "b"])))


async def test_dimensions_shorten_and_normalise_anew(embedder: httpx.AsyncClient) -> None:
    [whole], [head] = vectors(await ask(embedder)), vectors(await ask(embedder, dimensions=16))
    np.testing.assert_allclose(head, whole[:16] / np.linalg.norm(whole[:16]), rtol=1e-5)


async def test_an_unknown_field_is_ignored_and_listed(embedder: httpx.AsyncClient) -> None:
    reply = await ask(embedder, input_type="query")
    assert reply.headers["x-ignored-fields"] == "input_type"


# --- errors ----------------------------------------------------------------------------


@own_server
async def test_error_of_an_input_beyond_the_window_names_it(embedder: httpx.AsyncClient) -> None:
    error = (await ask(embedder, input="word " * 1000)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
    assert f"maximum context length is {WINDOW} tokens" in error["message"]


async def test_error_of_a_chat_with_an_embedder(embedder: httpx.AsyncClient) -> None:
    reply = await embedder.post("/v1/chat/completions", json={**chat_body(), "model": MODEL})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
    assert "llm/v1/embeddings" in reply.json()["error"]["message"]


# --- what the vectors are ----------------------------------------------------------------


@own_server
async def test_the_same_meaning_lies_nearer_than_another(embedder: httpx.AsyncClient) -> None:
    first, like, unlike = vectors(await ask(embedder, input=[*PARIS, "Multiply 7 by 8."]))
    assert first @ like > 0.8
    assert first @ unlike < 0.5


@own_server
async def test_token_ids_give_what_their_text_gives(embedder: httpx.AsyncClient) -> None:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(demo_folder(MODEL) / "tokenizer.json")).encode(PARIS[0]).ids
    by_ids, by_text = (
        vectors(await ask(embedder, input=ids)),
        vectors(await ask(embedder, input=PARIS[0])),
    )
    np.testing.assert_allclose(by_ids, by_text, atol=1e-6)


async def test_determinism_under_8_concurrent_requests(embedder: httpx.AsyncClient) -> None:
    texts = some_texts(12, seed=1)
    replies = await asyncio.gather(*(ask(embedder, input=texts) for _ in range(8)))
    first = vectors(replies[0])
    for reply in replies[1:]:
        np.testing.assert_allclose(vectors(reply), first, atol=1e-6)


async def test_64_concurrent_mixed_requests_equal_their_lone_run(embedder: httpx.AsyncClient) -> None:
    rng = random.Random(4)
    asked: list[Sequence[str]] = [some_texts(rng.randint(1, 6), seed=seed) for seed in range(64)]
    assert {len(texts) for texts in asked} > {1, 2}
    assert len(INTENTS) > 20
    lone = [vectors(await ask(embedder, input=texts)) for texts in asked]
    crowd = await asyncio.gather(*(ask(embedder, input=texts) for texts in asked))
    for one, reply in zip(lone, crowd, strict=True):
        np.testing.assert_allclose(vectors(reply), one, atol=2e-6)
