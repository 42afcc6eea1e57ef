"""Responses below Databricks' paths: OpenAI's items and events, with Databricks' errors."""

from __future__ import annotations

from typing import Any, Final

import pytest
from openai.types.responses import Response

from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason
from tests.support.fakes_backend import WORDS, FakeBackend
from tests.support.gateway import gateway
from tests.support.response_events import events_of

OPEN: Final = "/serving-endpoints/open-responses"
PATHS: Final = (
    "/serving-endpoints/responses",
    OPEN,
    "/ai-gateway/mlflow/v1/responses",
    "/databricks/v1/responses",
    "/databricks/serving-endpoints/responses",
    "/databricks/ai-gateway/mlflow/v1/responses",
)


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is a mixture of experts model?"}]
    return {"model": "demo", "input": messages, "max_output_tokens": 256, **fields}


@pytest.mark.parametrize("path", PATHS)
async def test_responses_are_whole_and_streamed_at_every_path(path: str) -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        whole = await g.post(path, body())
        assert Response.model_validate(whole.json()).output_text == "".join(WORDS)
        assert whole.headers["served-model-name"] == "demo"
        stream = await g.post(path, body(stream=True))
        assert events_of(stream.text)[-1].response.output_text == "".join(WORDS)


@pytest.mark.parametrize("base", ["/ai-gateway/mlflow/v1", "/serving-endpoints"])
async def test_the_ai_gateway_has_the_tasks_of_serving_endpoints(base: str) -> None:
    async with gateway() as g:
        chat = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}
        answer = await g.post(f"{base}/chat/completions", chat)
        assert (answer.status_code, "system_fingerprint" in answer.json()) == (200, False)
        unknown = await g.post(f"{base}/chat/completions", {**chat, "nonsense": 1})
        assert (unknown.status_code, unknown.json()["error_code"]) == (400, "BAD_REQUEST")


async def test_fields_that_other_makers_ignore_are_told_and_change_nothing() -> None:
    asked = {"user": "ann", "safety_identifier": "x", "metadata": {"a": "b"}}
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        found = await g.post(OPEN, body(**asked, truncation="auto", nonsense=1))
    assert {name: found.json()[name] for name in asked} == asked
    assert found.headers["x-ignored-fields"] == "nonsense, truncation"


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "name": "patch"}])
async def test_a_forced_call_of_a_custom_tool_has_its_grammar(choice: Any) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
    tools = [{"type": "custom", "name": "patch", "format": form}]
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        found = await g.post(OPEN, body(tools=tools, tool_choice=choice))
        assert found.status_code == 200, found.text
    assert "x-ignored-fields" not in found.headers
    assert g.backend.last.prompt.tools[0]["function"]["format"] == form


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "name": "f",
                        "format": {"type": "grammar", "syntax": "lark", "definition": "a"},
                    }
                ],
                "tool_choice": "required",
            },
            'tools.0.format.definition: tool "f": line 1: a colon must follow a',
        ),
        ({"temperature": 3}, "temperature: must be a number from 0 to 2"),
        ({"conversation": "conv_1"}, "conversation: no conversation is kept here"),
        ({"tools": [{"type": "file_search"}]}, "tools.0.type: only function, custom, "),
        ({"model": None}, "model: is required"),
    ],
)
async def test_an_error_is_databricks(fields: dict[str, Any], said: str) -> None:
    async with gateway() as g:
        found = await g.post(OPEN, body(**fields))
    assert found.status_code == 400
    told = found.json()
    assert list(told) == ["error_code", "message", "error"]
    assert told["message"].startswith(said)


async def test_a_failure_after_the_first_byte_is_a_failed_response() -> None:
    async with gateway(FakeBackend(fail_after=2, failure=GenerationFailed("the engine failed"))) as g:
        *_, last = events_of((await g.post(OPEN, body(stream=True))).text)
    assert (last.type, last.response.error.message) == ("response.failed", "the engine failed")
