"""Integers of more than 64 bits, wherever a template may meet them: in tools, earlier calls, variables."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from tests.conformance.target import DEMO

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG: Final = 20 * 10**18  # an amount of a token, as chains count them: above 2**64
PARAMETERS: Final = {
    "type": "object",
    "properties": {"wei": {"type": "integer", "maximum": LONG, "default": LONG}},
}
ARGUMENTS: Final = {"wei": LONG}
USER: Final = {"role": "user", "content": "x"}
FUNCTION: Final = {"name": "f", "description": "d", "parameters": PARAMETERS}
TOOL: Final = {"type": "function", "function": FUNCTION}
FLAT: Final = {"type": "function", "name": "f", "parameters": PARAMETERS}
CALL: Final = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": json.dumps(ARGUMENTS)}}
RESULT: Final = {"role": "tool", "tool_call_id": "c1", "content": str(LONG)}


def called(arguments: Any) -> list[dict[str, Any]]:
    """A conversation in which the model has called a tool."""
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    return [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, RESULT]


HISTORY: Final = called(json.dumps(ARGUMENTS))
ANTHROPIC_TOOL: Final = {"name": "f", "input_schema": PARAMETERS}
ANTHROPIC_HISTORY: Final = [
    USER,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": ARGUMENTS}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": str(LONG)}]},
]
ITEMS: Final = [
    {"role": "user", "content": "x"},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": json.dumps(ARGUMENTS)},
    {"type": "function_call_output", "call_id": "c1", "output": str(LONG)},
]
VARIABLES: Final = {"chat_template_kwargs": {"amount": LONG, "list": [{"amount": -LONG}]}}

_OPENAI: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "openai": ("/v1/chat/completions", {"model": DEMO, "max_tokens": 2}),
    "ovms": ("/v3/chat/completions", {"model": DEMO, "max_tokens": 2}),
    "mindie": ("/mindie/v1/chat/completions", {"model": DEMO, "max_tokens": 2}),
    "databricks": (f"/serving-endpoints/{DEMO}/invocations", {"max_tokens": 2}),
    "openai, tokenize": ("/tokenize", {"model": DEMO}),
}
_RESPONSES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "openai, responses": ("/v1/responses", {"model": DEMO, "max_output_tokens": 16}),
    "openai, input tokens": ("/v1/responses/input_tokens", {"model": DEMO}),
    "ovms, responses": ("/v3/responses", {"model": DEMO, "max_output_tokens": 16}),
    "databricks, responses": ("/serving-endpoints/responses", {"model": DEMO, "max_output_tokens": 16}),
}
_ANTHROPIC: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "anthropic": ("/v1/messages", {"model": DEMO, "max_tokens": 2}),
    "anthropic, count": ("/v1/messages/count_tokens", {"model": DEMO}),
}

# protocol and place -> path, body
PLACES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{f"{n}: tools": (p, {**b, "messages": [USER], "tools": [TOOL]}) for n, (p, b) in _OPENAI.items()},
    **{f"{n}: history": (p, {**b, "messages": HISTORY, "tools": [TOOL]}) for n, (p, b) in _OPENAI.items()},
    **{
        f"{n}: variables": (p, {**b, "messages": [USER], **VARIABLES})
        for n, (p, b) in _OPENAI.items()
        if n != "databricks"
    },
    "databricks: arguments as an object": (
        f"/serving-endpoints/{DEMO}/invocations",
        {"max_tokens": 2, "messages": called(ARGUMENTS), "tools": [TOOL]},
    ),
    "openai: functions": (
        "/v1/chat/completions",
        {"model": DEMO, "max_tokens": 2, "messages": [USER], "functions": [FUNCTION]},
    ),
    "openai: a forced call": (
        "/v1/chat/completions",
        {"model": DEMO, "max_tokens": 2, "messages": [USER], "tools": [TOOL], "tool_choice": "required"},
    ),
    **{f"{n}: tools": (p, {**b, "input": "x", "tools": [FLAT]}) for n, (p, b) in _RESPONSES.items()},
    **{f"{n}: history": (p, {**b, "input": ITEMS, "tools": [FLAT]}) for n, (p, b) in _RESPONSES.items()},
    **{f"{n}: variables": (p, {**b, "input": "x", **VARIABLES}) for n, (p, b) in _RESPONSES.items()},
    **{
        f"{n}: tools": (p, {**b, "messages": [USER], "tools": [ANTHROPIC_TOOL]})
        for n, (p, b) in _ANTHROPIC.items()
    },
    **{
        f"{n}: history": (p, {**b, "messages": ANTHROPIC_HISTORY, "tools": [ANTHROPIC_TOOL]})
        for n, (p, b) in _ANTHROPIC.items()
    },
    **{f"{n}: variables": (p, {**b, "messages": [USER], **VARIABLES}) for n, (p, b) in _ANTHROPIC.items()},
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_integer_is_one_like_any_other(
    client: httpx.AsyncClient, name: str, stream: bool
) -> None:
    path, body = PLACES[name]
    if (stream and "count" in name) or "token" in name:
        stream = False
    response = await client.post(path, json={**body, "stream": True} if stream else body)
    assert response.status_code == 200, response.text
    assert '"error":{' not in response.text
