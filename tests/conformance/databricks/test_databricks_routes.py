"""Routes, and what selects the protocol."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.accounts.keys import new_key
from serve_app.types import Scope
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import CHAT, COMPLETIONS, chat_body, completion_body, gateway

BASE = "/serving-endpoints"
INVOKE = BASE + "/demo/invocations"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}]}
TEXT = {"name": "text", "task": "llm/v1/completions", "served_entities": [{"model": "demo"}]}
DEMO = {"name": "demo"}


def told(answer: Any, status: int, code: str, *words: str) -> None:
    body = answer.json()
    if (answer.status_code, body.get("error_code")) != (status, code) or list(body) != [
        "error_code",
        "message",
        "error",
    ]:
        raise AssertionError(f"{answer.status_code}: {answer.text}")
    if not all(word in body["message"] for word in words):
        raise AssertionError(f"{words} are not in {body['message']!r}")


@pytest.mark.parametrize("prefix", ["", "/databricks"])
async def test_the_path_or_the_model_names_the_endpoint(prefix: str) -> None:
    async with gateway(endpoints=[DEMO, TEXT]) as g:
        for path, body, kind in (
            (INVOKE, HELLO, "chat.completion"),
            (INVOKE, {**HELLO, "model": "nobody"}, "chat.completion"),
            (BASE + "/chat/completions", chat_body(), "chat.completion"),
            (BASE + "/text/invocations", {"prompt": "x"}, "text_completion"),
            (BASE + "/completions", completion_body(model="text"), "text_completion"),
            (BASE + "/demo/served-models/demo/invocations", HELLO, "chat.completion"),
        ):
            answer = await g.post(prefix + path, body)
            assert (answer.status_code, answer.json()["object"]) == (200, kind), answer.text
            assert answer.headers["served-model-name"] == "demo"
            assert "system_fingerprint" not in answer.json()


async def test_an_endpoint_may_have_a_slash_in_its_name() -> None:
    async with gateway() as g:
        for path in (BASE + "/org/other/invocations", BASE + "/org%2Fother/invocations"):
            answer = await g.post(path, HELLO)
            assert (answer.status_code, answer.json().get("model")) == (200, "org/other"), answer.text


async def test_header_and_prefix_select_the_protocol_on_shared_routes() -> None:
    async with gateway(endpoints=[DEMO, TEXT]) as g:
        for path, headers in ((CHAT, {"x-api-dialect": "databricks"}), ("/databricks" + CHAT, {})):
            answer = await g.post(path, chat_body(), headers=headers)
            assert "system_fingerprint" not in answer.json(), answer.text
            told(
                await g.post(path, chat_body(top_k=0), headers=headers),
                400,
                "INVALID_PARAMETER_VALUE",
                "top_k",
            )
        answer = await g.post("/databricks" + COMPLETIONS, completion_body(model="text"))
        assert answer.json()["object"] == "text_completion"
        answer = await g.post(INVOKE, HELLO, headers={"x-api-dialect": "openai"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_model_is_required_where_the_path_names_no_endpoint() -> None:
    async with gateway() as g:
        for model in (None, "", 5, "x" * 257):
            answer = await g.post(BASE + "/chat/completions", chat_body(model=model))
            told(answer, 400, "INVALID_PARAMETER_VALUE", "model: is required")


@pytest.mark.parametrize("body", [{"prompt": "x"}, {"input": "x"}, {"input": ["x"], "instruction": "y"}])
async def test_a_body_of_another_task_is_a_mismatch(body: dict[str, Any]) -> None:
    async with gateway(endpoints=[DEMO, TEXT]) as g:
        told(await g.post(INVOKE, body), 400, "BAD_REQUEST", "task is llm/v1/chat")
        told(
            await g.post(BASE + "/text/invocations", HELLO), 400, "BAD_REQUEST", "task is llm/v1/completions"
        )
        other = await g.post(BASE + "/completions", completion_body(model="demo"))
        told(other, 400, "BAD_REQUEST", "task is llm/v1/chat")
        other = await g.post(BASE + "/chat/completions", chat_body(model="text"))
        told(other, 400, "BAD_REQUEST", "task is llm/v1/completions")


async def test_served_entities_are_named_in_the_answer_and_may_be_chosen() -> None:
    ab = {
        "name": "ab",
        "served_entities": [{"model": "m", "version": "1"}, {"model": "m", "version": "2"}],
        "traffic": {"m-1": 100},
    }
    key, line = new_key("somebody")
    router, router_line = new_key("router", [Scope.INFERENCE, Scope.ROUTING])
    backend = FakeBackend(infos=[model_info("m", "1"), model_info("m", "2")])
    async with gateway(backend, keys=f"{line} {router_line}", endpoints=[ab]) as g:
        mine = {"authorization": f"Bearer {key}"}
        answer = await g.post(BASE + "/ab/invocations", HELLO, headers=mine)
        assert answer.headers["served-model-name"] == answer.json()["model"] == "m-1"
        path = BASE + "/ab/served-models/m-2/invocations"
        told(await g.post(path, HELLO, headers=mine), 403, "PERMISSION_DENIED", "routing")
        chosen = {"authorization": f"Bearer {router}"}
        answer = await g.post(path, HELLO, headers=chosen)
        assert answer.headers["served-model-name"] == answer.json()["model"] == "m-2"
        answer = await g.post(path.replace("m-2", "m-3"), HELLO, headers=chosen)
        told(answer, 404, "RESOURCE_DOES_NOT_EXIST")


@pytest.mark.parametrize(
    "path", ["/.well-known/databricks-config", "/oidc/v1/token", "/serving-endpoints/x/y", "/api/2.0/nothing"]
)
async def test_e15_unknown_discovery_paths_are_404(path: str) -> None:
    async with gateway() as g:
        for method in ("GET", "POST"):
            answer = await g.client.request(method, path)
            assert answer.status_code == 404
        if path.startswith(("/serving-endpoints/", "/api/2.0/", "/.well-known/")):
            told(answer, 404, "ENDPOINT_NOT_FOUND")


async def test_e15_what_the_sdk_asks_for_without_its_key_is_a_404_with_keys_too() -> None:
    _, line = new_key("somebody")
    async with gateway(keys=line) as g:
        told(await g.client.get("/.well-known/databricks-config"), 404, "ENDPOINT_NOT_FOUND")
        assert (await g.client.get("/.well-known/other")).status_code == 401


@pytest.mark.parametrize("name", ["chat", "completions", "embeddings"])
async def test_reserved_names_are_no_endpoints(name: str) -> None:
    from serve_app.endpoints.catalogue import CatalogueError, parse_catalogue

    with pytest.raises(CatalogueError, match="reserved"):
        parse_catalogue({"endpoints": [{"name": name}]})


async def test_a_content_type_may_have_parameters() -> None:
    async with gateway() as g:
        answer = await g.client.post(INVOKE, json=HELLO, headers={"content-type": "application/json; x=y"})
        assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/embeddings", "/responses"])
async def test_an_error_stands_where_clients_of_openais_protocol_read_it(path: str) -> None:
    """openai-node and the AI SDK read nothing but `error`."""
    async with gateway() as g:
        for body in ({"model": "nobody", "messages": [], "prompt": "a", "input": "a"}, {"model": 7}):
            answer = await g.post(BASE + path, body)
            found = answer.json()
            assert answer.status_code in (400, 404)
            code = found["error_code"]
            expected = {"message": found["message"], "type": code, "code": code}
            assert {name: found["error"][name] for name in expected} == expected
            assert found["error"]["param"] is None or found["message"].startswith(found["error"]["param"])
