"""POST /v3/embeddings: OpenAI's vectors under this protocol's rules. The vectors are tested there."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.ovms.asks import names
from tests.support.fakes_backend import FakeBackend, embedder_info
from tests.support.gateway import Gateway, gateway

PATH = "/v3/embeddings"
ENDPOINTS = [
    {"name": "vectors", "task": "llm/v1/embeddings", "served_entities": [{"model": "embedder"}]},
    {"name": "talk", "served_entities": [{"model": "demo"}]},
]

BOUNDS: Bounds = {
    "input": (["x", ["a", "b"], [1, 2], [[1], [2, 3]]], [None, "", [], [""], 5, [1.5], ["a", 5]]),
    "encoding_format": (["float", "base64", None], ["hex", 5, ["float"]]),
    "dimensions": ([1, None], [0, -1, 1.5, "1", True]),
    "user": (["", "ann", None], [5, "x" * 513]),
    "model": ([], [None, 5, ""]),
}


def embedding_gateway(**config: Any) -> Any:
    backend = FakeBackend()
    backend.infos.append(embedder_info())
    return gateway(backend, endpoints=ENDPOINTS, **config)


async def ask(g: Gateway, **fields: Any) -> Any:
    return await g.post(PATH, {"model": "vectors", "input": "Hello!", **fields})


@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(field: str, value: Any) -> None:
    async with embedding_gateway() as g:
        found = await ask(g, **{field: value})
        assert found.status_code == 200, found.text


@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(field: str, value: Any) -> None:
    async with embedding_gateway() as g:
        names(await ask(g, **{field: value}), field)


async def test_unknown_fields_are_ignored_in_silence() -> None:
    async with embedding_gateway() as g:
        for unknown in ({"nonsense": 1}, {"timeout": "x"}):  # as in chat, which has no timeout either
            found = await ask(g, **unknown)
            assert found.status_code == 200
            assert "x-ignored-fields" not in found.headers


async def test_the_shape_of_an_answer_under_the_name_that_was_asked_for() -> None:
    async with embedding_gateway() as g:
        found = (await ask(g, input=["a", "b"], nonsense=1)).json()
        packed = (await ask(g, input=["a", "b"], encoding_format="base64")).json()
    assert list(found) == ["object", "model", "data", "usage"]
    assert (found["object"], found["model"]) == ("list", "vectors")
    assert [(entry["object"], entry["index"]) for entry in found["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    for entry, bare in zip(found["data"], packed["data"], strict=True):
        assert np.frombuffer(base64.b64decode(bare["embedding"]), "<f4").tolist() == entry["embedding"]
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0


async def test_errors_have_this_protocols_shape() -> None:
    async with embedding_gateway(ovms={"malformed_json_status": 412}) as g:
        for answer, status in [
            (await ask(g, model="nobody"), 404),
            (await ask(g, model="talk"), 400),
            (await g.client.post(PATH, content=b"{"), 412),
            (await g.client.get(PATH), 405),
        ]:
            assert answer.status_code == status
            assert list(answer.json()) == ["error"]
