"""Requests that lost the way, through the gateway: what they are told, in the shape of their protocol."""

from __future__ import annotations

import pytest

from serve_app.api.edge.route_guide import MAX_SHOWN_CHARS
from tests.support.gateway import gateway


def words(body: dict[str, object]) -> str:
    """The message of an error, whatever its shape."""
    error = body.get("error", body)
    return str(error["message"] if isinstance(error, dict) else error)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/responses", "perhaps POST /v1/responses was meant"),
        ("POST", "/v1/responses/", "perhaps POST /v1/responses was meant"),
        ("GET", "/v1/responses/resp_1", "no response is kept here"),
        ("POST", "/v1/responses/resp_1/cancel", "no response is kept here"),
        ("POST", "/messages", "perhaps POST /v1/messages was meant"),
        ("POST", "/api/chat", "Ollama's API is not served"),
        ("POST", "/chat/completions", "perhaps POST /v1/chat/completions was meant"),
        ("GET", "/models", "perhaps GET /v1/models was meant"),
        ("POST", "/embeddings", "perhaps POST /v1/embeddings was meant"),
        ("POST", "/v1/chat/completions/", "perhaps POST /v1/chat/completions was meant"),
        ("POST", "//v1/chat/completions", "perhaps POST /v1/chat/completions was meant"),
        ("POST", "/v1/v1/chat/completions", "perhaps POST /v1/chat/completions was meant"),
        ("POST", "/V1/Chat/Completions", "perhaps POST /v1/chat/completions was meant"),
        ("POST", "/v1/chat/completion", "perhaps POST /v1/chat/completions was meant"),
        ("GET", "/serving-endpoints", "endpoints are managed below /api/2.0/serving-endpoints"),
        ("GET", "/nothing/like/it", "there is no such route"),
    ],
)
async def test_a_404_names_what_was_asked_and_what_was_meant(method: str, path: str, told: str) -> None:
    async with gateway() as g:
        found = await g.client.request(method, f"http://gateway{path}", json={} if method == "POST" else None)
    assert found.status_code == 404
    assert words(found.json()).startswith(f"{method} {path}: there is no such route")
    assert told in words(found.json())


async def test_a_405_names_the_methods_that_are() -> None:
    async with gateway() as g:
        found = await g.client.get("/v1/chat/completions")
        page = await g.client.post("/v1/models", json={})
    assert (found.status_code, found.headers["allow"]) == (405, "POST")
    assert words(found.json()) == "GET /v1/chat/completions: this route takes POST"
    assert words(page.json()) == "POST /v1/models: this route takes GET"


async def test_a_route_of_another_protocol_is_named() -> None:
    async with gateway() as g:
        found = await g.post("/openai/v3/rerank", {})
    assert found.status_code == 404
    told = "POST /openai/v3/rerank: the protocol openai has no such route; it is one of ovms"
    assert words(found.json()).replace("/v3/rerank", "/openai/v3/rerank", 1) == told


@pytest.mark.parametrize("path", ["/x" * 4_000, "/%0A%1B[31m", "/<script>", "/é/\U0001f600", "/'\""])
async def test_what_is_shown_of_a_path_is_plain_and_bounded(path: str) -> None:
    async with gateway() as g:
        found = await g.client.get(f"http://gateway{path}")
    told = words(found.json())
    assert found.status_code == 404
    assert len(told) < 3 * MAX_SHOWN_CHARS + 200
    assert told.isascii()
    assert not set("<>'\"\n\x1b") & set(told.replace("'s", ""))


@pytest.mark.parametrize("base", ["/serving-endpoints", "/ai-gateway/mlflow/v1"])
async def test_models_are_listed_where_openai_clients_of_databricks_look(base: str) -> None:
    async with gateway() as g:
        listed = (await g.client.get(f"{base}/models")).json()
        page = (await g.client.get(f"{base}/models/demo")).json()
        assert listed == (await g.client.get("/v1/models")).json()
    assert page in listed["data"]


@pytest.mark.parametrize("field", [{"tools": [{}]}, {"functions": [{}]}, {"tool_choice": "required"}])
async def test_tools_of_a_completion_are_sent_where_tools_are(field: dict[str, object]) -> None:
    async with gateway() as g:
        found = await g.post("/v1/completions", {"model": "demo", "prompt": "x", **field})
    assert found.status_code == 400
    assert words(found.json()) == f"{next(iter(field))}: only chats have tools; use /v1/chat/completions"
