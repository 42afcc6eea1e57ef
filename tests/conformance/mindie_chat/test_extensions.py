"""Tools and forced forms: extensions of chat that are there when asked for, and only then."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from serve_app.types import (
    FinishReason,
    GenerateRequest,
    GrammarKind,
    TokenDelta,
    ToolCallDelta,
    ToolMode,
)
from tests.conformance.conftest import MODEL
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import chat_body, events, gateway
from tests.support.streams import streamed

PATH = "/mindie/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class CallingBackend(FakeBackend):
    """Says a word, calls a tool in two pieces, and ends."""

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        self.requests.append(request)
        pieces = [ToolCallDelta(index=0, id="c1", name="add"), ToolCallDelta(index=0, arguments='{"a":1}')]
        yield [TokenDelta(request_id=request.id, index=0, text="Hm.")]
        yield [TokenDelta(request_id=request.id, index=0, tool_calls=(piece,)) for piece in pieces]
        yield [TokenDelta(request_id=request.id, index=0, finish=FinishReason.TOOL_CALLS)]


async def test_a_call_is_part_of_the_message() -> None:
    async with gateway(CallingBackend()) as g:
        answer = (await g.post(PATH, chat_body(tools=[TOOL], tool_choice="required"))).json()
        assert g.backend.last.tool_choice.mode is ToolMode.REQUIRED
        assert g.backend.last.prompt.tools[0]["function"]["name"] == "add"
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    assert choice["message"] == {"role": "assistant", "content": "Hm.", "tool_calls": [call]}


async def test_a_call_is_streamed_in_pieces_each_with_the_role() -> None:
    async with gateway(CallingBackend()) as g:
        chunks = events((await g.post(PATH, chat_body(tools=[TOOL], stream=True))).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    head = {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": ""}}
    assert deltas == [
        {"role": "assistant", "content": "Hm."},
        {"role": "assistant", "tool_calls": [head]},
        {"role": "assistant", "tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]},
        {},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_form_reaches_the_model() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with gateway() as g:
        assert (await g.post(PATH, chat_body(response_format=form))).status_code == 200
        grammar = g.backend.last.grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.SCHEMA


@pytest.mark.asyncio(loop_scope="module")
async def test_a_real_model_keeps_to_the_form(client: httpx.AsyncClient) -> None:
    form: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": {
            "name": "x",
            "schema": {
                "type": "object",
                "properties": {"sea": {"enum": ["calm", "wild"]}},
                "required": ["sea"],
                "additionalProperties": False,
            },
        },
    }
    body = {"model": MODEL, "messages": [{"role": "user", "content": "The sea?"}], "response_format": form}
    answer = await client.post(PATH, json={**body, "max_tokens": 60, "top_k": 1})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "eos_token"
    assert json.loads(choice["message"]["content"])["sea"] in ("calm", "wild")
