"""Requests that lost the way, through the gateway: what they are told, in the shape of their protocol."""

from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from serve_app.api.edge.route_guide import MAX_SHOWN_CHARS
from tests.support.gateway import gateway, served


def words(body: dict[str, object]) -> str:
    """The message of an error, whatever its shape."""
    error = body.get("error", body)
    return str(error["message"] if isinstance(error, dict) else error)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/responses", "perhaps POST /v1/responses was meant"),
        ("POST", "/v1/responses/", "perhaps POST /v1/responses was meant"),
        ("POST", "/v1/responses/resp_1/cancel", "nothing runs in the background"),
        ("POST", "/messages", "perhaps POST /v1/messages was meant"),
        ("POST", "/api/chat", "OpenAI-compatible provider in the client's settings"),
        ("POST", "/api/generate", "texts are completed by POST /v1/completions"),
        ("GET", "/api/tags", "/v1 as its base URL"),
        ("POST", "/api/show", "models are listed by GET /v1/models"),
        ("GET", "/api/version", "Ollama's API is not served"),
        ("POST", "/api/embed", "texts are embedded by POST /v1/embeddings"),
        ("GET", "/v1/files", "`serve-app batch` answers a file of requests"),
        ("GET", "/v1/files/file-1/content", "`serve-app batch` answers a file of requests"),
        ("POST", "/v1/uploads", "`serve-app batch` answers a file of requests"),
        ("POST", "/v1/batches", "no batches are kept"),
        ("POST", "/v1/batches/batch_1/cancel", "no batches are kept"),
        ("POST", "/v1/messages/batches", "no batches of messages are kept"),
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


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/v1/files", "/serving-endpoints/x/y", "/v3/x"])
async def test_a_client_of_anthropics_is_told_in_anthropics_shape(path: str) -> None:
    version = {"anthropic-version": "2023-06-01"}
    async with gateway() as g:
        found = await g.client.get(path, headers=version)
        forced = await g.client.get(path, headers={**version, "x-api-dialect": "ovms"})
    assert found.status_code == forced.status_code == 404
    assert found.json()["type"] == "error"
    assert found.json()["error"]["type"] == "not_found_error"
    assert found.headers["request-id"]
    assert "type" not in forced.json()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/responses", "; POST /v1/responses answers over HTTP"),
        ("/v1/realtime?model=demo", ""),
        ("/v3/chat/completions", "; POST /v3/chat/completions answers over HTTP"),
    ],
)
async def test_a_websocket_gets_a_404_with_words(path: str, more: str) -> None:
    async with gateway() as g, served(g.app) as (host, port):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://{host}:{port}{path}"):
                pass
    answer = refused.value.response
    asked = path.partition("?")[0]
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")
    assert words(json.loads(answer.body)) == f"GET {asked}: WebSockets are not served{more}"


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
