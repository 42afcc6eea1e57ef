"""Tools of known schemas that clients run: Anthropic's by their dated types, OpenAI's shells and patches."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from openai.types.responses import Response

from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.dialects.responses.body import Reading
from serve_app.api.dialects.responses.dialect import ResponseDialect
from serve_app.api.protocol.dialect import Call, Choice, Renderer, ToolCall
from serve_app.types import FinishReason, TokenDelta, ToolCallDelta, Usage
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import gateway
from tests.support.response_events import events_of

USER: Final = {"role": "user", "content": "Do it!"}
COMPUTER: Final = {
    "type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768
}  # fmt: skip
ANTHROPIC: Final[list[dict[str, Any]]] = [
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000},
    {"type": "memory_20250818", "name": "memory"},
    COMPUTER,
]
CALLED: Final[dict[str, dict[str, Any]]] = {
    "local_shell": {"command": ["ls", "-l"], "timeout_ms": 5},
    "shell": {"commands": ["ls -l"]},
    "apply_patch": {"type": "create_file", "path": "a.txt", "diff": "+a"},
}
ACTIONS: Final[dict[str, dict[str, Any]]] = {
    "local_shell": {
        "action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5, "user": None,
                   "working_directory": None},
    },
    "shell": {"action": {"commands": ["ls -l"], "timeout_ms": None, "max_output_length": None}},
    "apply_patch": {"operation": {"type": "create_file", "path": "a.txt", "diff": "+a"}},
}  # fmt: skip
OUTCOME: Final = {"type": "exit", "exit_code": 1}
OUTPUTS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "local_shell": ({"output": "a.txt"}, "a.txt"),
    "shell": (
        {"output": [{"stdout": "a.txt", "stderr": "!", "outcome": OUTCOME},
                    {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}]},
        "a.txt\n!\n[exit code 1]\n[timeout]",
    ),
    "apply_patch": ({"status": "failed", "output": "no such file"}, "failed\nno such file"),
}  # fmt: skip


async def test_anthropics_client_tools_are_offered_with_their_schemas() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        body = {"model": "demo", "max_tokens": 5, "messages": [USER], "tools": ANTHROPIC}
        found = await g.post("/v1/messages", body)
        assert found.status_code == 200, found.text
        offered = {each["function"]["name"]: each["function"] for each in g.backend.last.prompt.tools}
        assert list(offered) == ["bash", "str_replace_based_edit_tool", "memory", "computer"]
        parameters = {name: each["parameters"]["properties"] for name, each in offered.items()}
        assert set(parameters["bash"]) == {"command", "restart"}
        assert parameters["memory"]["command"]["enum"][-1] == "rename"
        assert "insert_text" in parameters["str_replace_based_edit_tool"]
        assert "1024 x 768" in offered["computer"]["description"]
        old = {"type": "text_editor_20250124", "name": "str_replace_editor"}
        await g.post("/v1/messages", {**body, "tools": [old]})
        (editor,) = g.backend.last.prompt.tools
        properties = editor["function"]["parameters"]["properties"]
        assert ("undo_edit" in properties["command"]["enum"], "insert_text" in properties) == (True, False)
        for tool, place in (
            ({"type": "bash_20250124", "name": "sh"}, "tools.0.name"),
            ({"type": "bash_20250124"}, "tools.0.name"),
            ({**COMPUTER, "display_width_px": 0}, "tools.0.display_width_px"),
            ({"type": "computer_20250124", "name": "computer"}, "tools.0.display_width_px"),
            ({"type": "bash_latest", "name": "bash"}, "tools.0.type"),
            ({"type": "code_execution_20250522", "name": "code_execution"}, "tools.0.type"),
        ):
            refused = await g.post("/v1/messages", {**body, "tools": [tool]})
            assert (refused.status_code, place in refused.text) == (400, True)


@pytest.mark.parametrize("name", CALLED)
async def test_calls_and_outputs_are_items_of_a_conversation(name: str) -> None:
    output, text = OUTPUTS[name]
    items = [
        USER,
        {"type": f"{name}_call", "id": "x_1", "call_id": "c1", "status": "completed", **ACTIONS[name]},
        {"type": f"{name}_call_output", "call_id": "c1", **output},
    ]
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        body = {"model": "demo", "input": items, "tools": [{"type": name}]}
        first = (await g.post("/v1/responses", body)).json()
        (tool,) = g.backend.last.prompt.tools
        assert tool["function"]["name"] == name
        _, called, answered = g.backend.last.prompt.messages or ()
        (call,) = called["tool_calls"]
        assert (call["id"], call["function"]) == ("c1", {"name": name, "arguments": CALLED[name]})
        assert (answered["tool_call_id"], answered["content"]) == ("c1", text)
        assert first["tools"] == [{"type": name}]
        # As what is kept, too.
        more = {"model": "demo", "input": "x", "previous_response_id": first["id"]}
        assert (await g.post("/v1/responses", more)).status_code == 200
        for item, place in (
            ({**items[1], **dict.fromkeys(ACTIONS[name], 5)}, f"input.0.{next(iter(ACTIONS[name]))}"),
            ({"type": f"{name}_call_output", "call_id": "c1", "output": 5}, "input.0."),
        ):
            refused = await g.post("/v1/responses", {"model": "demo", "input": [item]})
            assert (refused.status_code, place in refused.text) == (400, True)


async def test_a_shell_of_openais_own_is_refused() -> None:
    async with gateway(FakeBackend()) as g:
        tools = [{"type": "shell", "environment": {"type": "container_auto"}}]
        refused = await g.post("/v1/responses", {"model": "demo", "input": "x", "tools": tools})
        assert (refused.status_code, "tools.0.environment" in refused.text) == (400, True)
        tools = [{"type": "shell", "environment": {"type": "local"}}]
        assert (
            await g.post("/v1/responses", {"model": "demo", "input": "x", "tools": tools})
        ).status_code == 200


@pytest.mark.parametrize("name", CALLED)
def test_a_call_has_the_item_that_its_client_reads(name: str) -> None:
    """Whole, and added to a stream once it is whole: the client runs what it is told."""
    arguments = json.dumps(CALLED[name])
    first = ToolCallDelta(index=0, id="c1", name=name, arguments=arguments[:9])
    deltas = [
        TokenDelta(request_id="r", index=0, tool_calls=(first,)),
        TokenDelta(request_id="r", index=0, tool_calls=(ToolCallDelta(index=0, arguments=arguments[9:]),)),
        TokenDelta(request_id="r", index=0, finish=FinishReason.TOOL_CALLS),
    ]
    stream = renderer(name)
    raw = b"".join([*(stream.event(0, each) for each in deltas), stream.end(Usage())]).decode()
    events = events_of(raw)
    assert [each.type for each in events[2:]] == [
        "response.output_item.added", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    added, done = (json.loads(part.partition("data: ")[2])["item"] for part in raw.split("\n\n")[2:4])
    assert done == {
        "id": done["id"], "type": f"{name}_call", "call_id": "c1", "status": "completed", **ACTIONS[name]
    }  # fmt: skip
    assert added == {**done, "status": "in_progress"}
    choice = Choice()
    for each in deltas:
        choice.add(each)
    whole = json.loads(renderer(name).whole([choice], Usage()))
    Response.model_validate(whole)
    assert whole["output"] == [done]


@pytest.mark.parametrize("name", CALLED)
def test_a_call_that_was_cut_is_of_its_shape(name: str) -> None:
    for arguments in ("", '{"command": ["ls', '{"type": "update_', "[", "5"):
        choice = Choice(calls=[ToolCall("c1", name, [arguments])], finish=FinishReason.LENGTH)
        whole = json.loads(renderer(name).whole([choice], Usage()))
        (item,) = whole["output"]
        assert (item["type"], set(item)) == (
            f"{name}_call", {"id", "type", "call_id", "status", *ACTIONS[name]},
        )  # fmt: skip
        assert item["status"] != "completed"


def renderer(name: str) -> Renderer:
    body = {"model": "demo", "input": "x", "tools": [{"type": name}]}
    dialect = ResponseDialect(render_error, Reading(keeps=False, notes_pictures=True))
    call = dialect.parse(json.dumps(body).encode())
    assert isinstance(call, Call)
    return call.renderer("r1", model_info())
