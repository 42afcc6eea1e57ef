"""Numbers that a float cannot hold, through every protocol: an answer has them to the last digit.

The texts of answers are looked at, since most clients read numbers as floats.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import httpx
import pytest

from tests.conformance.target import DEMO

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA: Final = (
    '{"type":"object","properties":{"id":{"enum":[1152921504606846977]},"x":{"const":0.1234567890123456789},'
    '"n":{"type":"integer","minimum":18446744073709551617,"maximum":18446744073709551617}},'
    '"required":["id","x","n"],"additionalProperties":false}'
)
VALUES: Final = r'{"id":1152921504606846977,"x":0.1234567890123456789,"n":18446744073709551617}'
SPACE: Final = re.compile(r"\s")

_FORMAT: Final = f'{{"type":"json_schema","json_schema":{{"name":"x","schema":{SCHEMA}}}}}'
# Greedy, so that no answer is blanks until it is cut.
_CHAT: Final = '"max_tokens":250,"temperature":0,"messages":[{"role":"user","content":"x"}]'
_MINDIE: Final = _CHAT.replace('"temperature":0', '"top_k":1')
_TAGS: Final = json.dumps(
    {"structures": [{"begin": "<f>", "schema": "SCHEMA", "end": "</f>"}], "triggers": ["<f>"]}
).replace('"SCHEMA"', SCHEMA)
_TAG: Final = (
    '{"type":"structural_tag","format":{"type":"tag","begin":"<f>","end":"</f>",'
    f'"content":{{"type":"json_schema","json_schema":{SCHEMA}}}}}}}'
)

# protocol and field -> path, body
FORMS: Final = {
    "openai": ("/v1/chat/completions", f'{{"model":"{DEMO}",{_CHAT},"response_format":{_FORMAT}}}'),
    "openai, guided_json": ("/v1/chat/completions", f'{{"model":"{DEMO}",{_CHAT},"guided_json":{SCHEMA}}}'),
    "openai, guided_json as text": (
        "/v1/chat/completions",
        f'{{"model":"{DEMO}",{_CHAT},"guided_json":{json.dumps(SCHEMA)}}}',
    ),
    "openai, structured_outputs": (
        "/v1/chat/completions",
        f'{{"model":"{DEMO}",{_CHAT},"structured_outputs":{{"json":{SCHEMA}}}}}',
    ),
    "openai, completions": (
        "/v1/completions",
        f'{{"model":"{DEMO}","prompt":"x","max_tokens":250,"temperature":0,"guided_json":{SCHEMA}}}',
    ),
    "openai, responses": (
        "/v1/responses",
        f'{{"model":"{DEMO}","input":"x","max_output_tokens":250,"temperature":0,'
        f'"text":{{"format":{{"type":"json_schema","name":"x","schema":{SCHEMA}}}}}}}',
    ),
    "anthropic": (
        "/v1/messages",
        f'{{"model":"{DEMO}",{_CHAT},"output_config":{{"format":{{"type":"json_schema","schema":{SCHEMA}}}}}}}',
    ),
    "databricks": (f"/serving-endpoints/{DEMO}/invocations", f'{{{_CHAT},"response_format":{_FORMAT}}}'),
    "mindie": ("/mindie/v1/chat/completions", f'{{"model":"{DEMO}",{_MINDIE},"response_format":{_FORMAT}}}'),
    "ovms": ("/v3/chat/completions", f'{{"model":"{DEMO}",{_CHAT},"response_format":{_FORMAT}}}'),
    "ovms, structural tag": (
        "/v3/chat/completions",
        f'{{"model":"{DEMO}",{_CHAT},"response_format":{_TAG}}}',
    ),
    "triton": (
        f"/v2/models/{DEMO}/generate",
        '{"text_input":"x","max_tokens":250,"top_k":1,"guided_decoding_guide_type":"json_schema",'
        f'"guided_decoding_guide":{json.dumps(SCHEMA)}}}',
    ),
}


@pytest.mark.parametrize("name", FORMS)
async def test_a_form_of_the_answer(client: httpx.AsyncClient, name: str) -> None:
    path, body = FORMS[name]
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    assert VALUES in SPACE.sub("", _unquoted(response.text))


@pytest.mark.parametrize("name", FORMS)
async def test_a_number_that_is_too_long_is_refused_with_its_place(
    client: httpx.AsyncClient, name: str
) -> None:
    path, body = FORMS[name]
    body = body.replace("0.1234567890123456789", "1e-401")
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422), response.text
    assert "$.properties.x" in response.text


async def test_a_structural_tag_of_triton_names_the_place_too(client: httpx.AsyncClient) -> None:
    body = {
        "text_input": "x",
        "guided_decoding_guide_type": "structural_tag",
        "guided_decoding_guide": _TAGS.replace("0.1234567890123456789", "1e-401"),
    }
    response = await client.post(f"/v2/models/{DEMO}/generate", json=body)
    assert response.status_code == 400, response.text
    assert "$.properties.x" in response.text


_TOOL: Final = f'{{"type":"function","function":{{"name":"f","parameters":{SCHEMA}}}}}'
TOOLS: Final = {
    "openai": (
        "/v1/chat/completions",
        f'{{"model":"{DEMO}",{_CHAT},"tools":[{_TOOL}],"tool_choice":"required"}}',
    ),
    "openai, responses": (
        "/v1/responses",
        f'{{"model":"{DEMO}","input":"x","max_output_tokens":250,"temperature":0,"tool_choice":"required",'
        f'"tools":[{{"type":"function","name":"f","parameters":{SCHEMA}}}]}}',
    ),
    "anthropic": (
        "/v1/messages",
        f'{{"model":"{DEMO}",{_CHAT},"tools":[{{"name":"f","input_schema":{SCHEMA}}}],"tool_choice":{{"type":"any"}}}}',
    ),
    "databricks": (
        f"/serving-endpoints/{DEMO}/invocations",
        f'{{{_CHAT},"tools":[{_TOOL}],"tool_choice":"required"}}',
    ),
    "mindie": (
        "/mindie/v1/chat/completions",
        f'{{"model":"{DEMO}",{_MINDIE},"tools":[{_TOOL}],"tool_choice":"required"}}',
    ),
    "ovms": (
        "/v3/chat/completions",
        f'{{"model":"{DEMO}",{_CHAT},"tools":[{_TOOL}],"tool_choice":"required"}}',
    ),
}


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_of_a_forced_call(client: httpx.AsyncClient, name: str, stream: bool) -> None:
    path, body = TOOLS[name]
    body = body[:-1] + f',"stream":{json.dumps(stream)}}}'
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    found = "".join(_arguments(response.text)) if stream else _unquoted(response.text)
    assert VALUES in SPACE.sub("", found)


async def test_a_tool_with_a_number_that_is_too_long_is_refused_by_name(client: httpx.AsyncClient) -> None:
    path, body = TOOLS["openai"]
    body = body.replace("0.1234567890123456789", "1e-401")
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == "tools"
    assert 'tool "f"' in error["message"]
    assert "$.properties.x" in error["message"]


def _unquoted(text: str) -> str:
    """Strings inside of JSON with their quotes, spaces and line breaks as they are."""
    return text.replace('\\"', '"').replace("\\n", "").replace("\\r", "").replace("\\t", "")


def _arguments(events: str) -> list[str]:
    """The pieces of a call's arguments in a stream of any protocol."""
    pieces: list[str] = []
    pending: list[Any] = [
        json.loads(line[5:])
        for line in events.splitlines()
        if line.startswith("data:") and "[DONE]" not in line
    ]
    for event in pending:
        if event.get("type", "").endswith("arguments.delta"):
            pieces.append(event["delta"])
        elif event.get("type") == "content_block_delta":
            pieces.append(event["delta"].get("partial_json", ""))
        for choice in event.get("choices", ()):
            calls = choice["delta"].get("tool_calls") or ()
            pieces += [call["function"].get("arguments") or "" for call in calls]
    return pieces
