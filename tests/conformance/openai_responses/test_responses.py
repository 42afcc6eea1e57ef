"""POST /v1/responses of OpenAI: fields, items, and events, which are of the openai package's types."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import httpx
import pytest
from openai.types.responses import Response

from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.dialects.responses.body import Reading
from serve_app.api.dialects.responses.dialect import ResponseDialect
from serve_app.api.protocol.dialect import Call
from serve_app.errors import GenerationFailed, QuotaExceeded
from serve_app.types import FinishReason, Prompt
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.openai_bounds import ANSWER, VARIED
from tests.conformance.openai_errors import INVALID, error_of
from tests.conformance.openai_rules import Route
from tests.support.fakes_backend import CACHED_TOKENS, PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import gateway
from tests.support.response_events import events_of

module_loop = pytest.mark.asyncio(loop_scope="module")

DIALECT: Final = ResponseDialect(render_error, Reading(keeps=False, notes_pictures=True))
ROUTE: Final = Route("/v1/responses", {"input": "Tell me!"}, length="max_output_tokens")

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OTHER = {**TOOL, "name": "g"}
CUSTOM = {"type": "custom", "name": "patch", "description": "Apply a patch."}
GROUP = {"type": "namespace", "name": "crm", "description": "The CRM.", "tools": [TOOL, CUSTOM]}
NAMED = {"type": "function", "name": "f"}
SCHEMA = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
USER = {"role": "user", "content": "x"}
PART = {"type": "input_text", "text": "a"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "+a"}
CALL_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "5"}

BOUNDS: Bounds = {
    "input": (["x", ""], [None, [], 5, {}, [5], [{}], [{"role": "critic", "content": "x"}]]),
    "instructions": (["", "Be brief.", None], [5, ["x"]]),
    "max_output_tokens": ([1, 3.0, pytest.param(None, marks=pytest.mark.own_server)], []),
    "top_logprobs": ([0, 20, None], []),
    "include": (
        [[], ["message.output_text.logprobs"], ["reasoning.encrypted_content"], None],
        ["message.output_text.logprobs", ["nonsense"], [5], 5],
    ),
    "tools": (
        [[], [TOOL], [CUSTOM], [GROUP], [{"type": "web_search"}, TOOL], [{"type": "tool_search"}], None],
        [5, [5], [{"type": "function"}], [TOOL, TOOL], [{"type": "file_search"}], [{"name": "f"}],
         [{**TOOL, "strict": True}], [{"type": "custom"}], [{"type": "namespace", "tools": [TOOL]}],
         [{"type": "namespace", "name": "n"}], [{"type": "web_search"}] * 129,
         [{**GROUP, "tools": [GROUP]}], [TOOL, GROUP]],
    ),
    "tool_choice": (["auto", "none", None], ["required", "any", 5, NAMED, {"type": "web_search"},
                                             {"type": "allowed_tools", "mode": "auto", "tools": []}]),
    "text": (
        [{}, {"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {"format": SCHEMA},
         {"verbosity": "low"}, None],
        [5, {"format": 5}, {"format": {}}, {"format": {"type": "xml"}}, {"format": {"type": "json_schema"}},
         {"format": {**SCHEMA, "strict": True}}, {"verbosity": "loud"}],
    ),
    "reasoning": (
        [{}, {"effort": "low"}, {"effort": "none"}, {"summary": "auto"}, None],
        [5, {"effort": "much"}, {"summary": "long"}],
    ),
    "stream_options": ([None], [{}, {"include_obfuscation": False}, 5]),
    "truncation": (["disabled", "auto", None], ["x", 5]),
    "store": ([True, False, None], []),
    "previous_response_id": ([None], ["", 5, "x" * 257]),
    "metadata": (
        [{}, {"a": "b"}, {"k" * 64: "v" * 512}, {str(i): "" for i in range(16)}, None],
        [5, {"a": 5}, {"k" * 65: ""}, {"k": "v" * 513}, {str(i): "" for i in range(17)}],
    ),
    "safety_identifier": (["", "ann", "x" * 512, None], ["x" * 513, 5]),
    "prompt_cache_key": (["", "x" * 512, None], ["x" * 513, 5]),
    "service_tier": (["auto", "default", "flex", None], ["cheap", 5]),
    "chat_template_kwargs": ([{}, {"enable_thinking": False}, None], [5, {"": 1}]),
    "add_generation_prompt": ([True, False, None], []),
    "continue_final_message": ([False, None], []),
}  # fmt: skip

# What the server cannot do, and what belongs to chats.
UNSUPPORTED: Final[dict[str, Any]] = {
    "conversation": "conv_1",
    "background": True,
    "prompt": {"id": "pmpt_1"},
    "messages": [USER],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "response_format": {"type": "json_object"},
    "functions": [],
    "function_call": "auto",
    "guided_regex": "a",
    "structured_outputs": {"regex": "a"},
}

TOGETHER: Final[dict[str, tuple[dict[str, Any], str | None]]] = {
    "include_obfuscation": ({"stream": True, "stream_options": {"include_obfuscation": True}}, None),
    "include_obfuscation=1": (
        {"stream": True, "stream_options": {"include_obfuscation": 1}}, "stream_options",
    ),
    "tool_choice-names-a-tool": ({"tools": [TOOL], "tool_choice": NAMED}, None),
    "tool_choice-names-no-tool": ({"tools": [OTHER], "tool_choice": NAMED}, "tool_choice"),
    "allowed_tools": (
        {"tools": [TOOL, OTHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}},
        None,
    ),
    "allowed_tools-of-no-mode": (
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [NAMED]}}, "tool_choice.mode",
    ),
    "allowed_tools-unknown": (
        {"tools": [OTHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}},
        "tool_choice.tools",
    ),
    "continue_final_message": (
        {"input": [USER, {"role": "assistant", "content": "The"}], "continue_final_message": True}, None,
    ),
}  # fmt: skip

SOUND: Final[dict[str, list[Any]]] = {
    "type-of-a-message": [{"type": "message", **USER}],
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
    "parts": [{"role": "user", "content": [PART, PART]}],
    "output": [USER, {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                      "content": [{"type": "output_text", "text": "y", "annotations": []}]}, USER],
    "call": [USER, CALL, {"type": "function_call_output", "call_id": "c1", "output": "5"}],
    "output-in-parts": [USER, CALL, {"type": "function_call_output", "call_id": "c1",
                                     "output": [{"type": "input_text", "text": "5"}]}],
    "custom": [USER, CUSTOM_CALL, {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}],
    "a-call-of-a-namespace": [USER, {**CALL, "namespace": "crm"}, CALL_OUTPUT],
    "reasoning": [USER, {"type": "reasoning", "id": "rs_1", "summary": [],
                         "content": [{"type": "reasoning_text", "text": "Hm."}]}, CALL],
    "encrypted": [USER, {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}, USER],
}  # fmt: skip
UNSOUND: Final[dict[str, tuple[list[Any], str]]] = {
    "role": ([{"type": "message", "content": "x"}], "input.0.role"),
    "content": ([{"role": "user"}], "input.0.content"),
    "content-a-number": ([USER, {"role": "user", "content": 5}], "input.1.content"),
    "file": (
        [{"role": "user", "content": [{"type": "input_file", "file_data": "data:"}]}],
        "input.0.content.0.type",
    ),
    "call_id": ([{**CALL, "call_id": None}], "input.0.call_id"),
    "arguments": ([{**CALL, "arguments": {}}], "input.0.arguments"),
    "name": ([{**CALL, "name": ""}], "input.0.name"),
    "output": ([{"type": "function_call_output", "call_id": "c1"}], "input.0.output"),
    "input": ([{**CUSTOM_CALL, "input": {}}], "input.0.input"),
    "summary": ([{"type": "reasoning", "summary": "x"}], "input.0.summary"),
    "summary-part": ([{"type": "reasoning", "summary": [{"text": "x"}]}], "input.0.summary.0"),
    "item_reference": ([{"type": "item_reference", "id": 5}], "input.0.id"),
    "another-type": ([{"type": "web_search_call", "id": "ws_1"}], "input.0.type"),
    "no-type": ([{"content": "x"}], "input.0.type"),
}  # fmt: skip


async def answer(client: httpx.AsyncClient, **fields: Any) -> Response:
    """A whole response, with every member that the package knows of the type that it has there."""
    found = await ROUTE.ask(client, **fields)
    assert found.status_code == 200, found.text
    return Response.model_validate(found.json())


async def streamed(client: httpx.AsyncClient, **fields: Any) -> list[Any]:
    found = await ROUTE.ask(client, stream=True, **fields)
    assert found.status_code == 200, found.text
    return events_of(found.text)


def texts(events: list[Any]) -> str:
    return "".join(each.delta for each in events if each.type == "response.output_text.delta")


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(ANSWER) + accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    await ROUTE.accepts(client, field, value)


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(ANSWER) + refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    found = await ROUTE.ask(client, **{field: value})
    assert found.status_code == 400
    error = error_of(found)
    assert error["type"] == INVALID
    assert str(error["param"]).split(".")[0] == field
    assert field in error["message"]


@module_loop
@pytest.mark.parametrize(("fields", "complaint"), TOGETHER.values(), ids=TOGETHER.keys())
async def test_fields_beside_each_other(
    client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None
) -> None:
    await ROUTE.judges(client, fields, complaint)


@module_loop
@pytest.mark.parametrize(("field", "value"), UNSUPPORTED.items(), ids=UNSUPPORTED.keys())
async def test_what_cannot_be_is_an_error(client: httpx.AsyncClient, field: str, value: Any) -> None:
    found = await ROUTE.ask(client, **{field: value})
    assert found.status_code == 400
    assert (error_of(found)["param"], error_of(found)["code"]) == (field, "unsupported_parameter")


@module_loop
@pytest.mark.parametrize("items", SOUND.values(), ids=SOUND.keys())
async def test_items_that_are_accepted(client: httpx.AsyncClient, items: list[Any]) -> None:
    assert len((await answer(client, input=items)).output) == 1


@module_loop
@pytest.mark.parametrize(("items", "param"), UNSOUND.values(), ids=UNSOUND.keys())
async def test_items_that_are_refused(client: httpx.AsyncClient, items: list[Any], param: str) -> None:
    found = await ROUTE.ask(client, input=items)
    assert found.status_code == 400
    assert error_of(found)["param"] == param


async def test_the_items_of_a_turn_are_one_message() -> None:
    """A turn is what the assistant thought, said and called; `input.type`, `input.role` and `input.content`
    tell the items apart, and `input.call_id` pairs `input.arguments` with `input.output`."""
    items = [
        {"role": "developer", "content": "Be brief."},
        USER,
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Short."}],
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {**CALL, "arguments": '{"a": 1}'},
        {**CALL, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c2", "output": "7"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Again."}]},
        {**CALL, "call_id": "c3"},
        {"role": "assistant", "content": "I look"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"role": "assistant", "content": "again."},
        {"type": "function_call_output", "call_id": "c3", "output": "8"},
        {"role": "assistant", "content": "Eight."},
        {"role": "assistant", "content": "Really."},
    ]  # fmt: skip
    async with gateway(FakeBackend()) as g:
        found = await g.post(ROUTE.path, ROUTE.body(model="demo", input=items, instructions="Help."))
        assert found.status_code == 200

    def call(id: str, **arguments: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", "arguments": arguments}, "id": id}

    assert g.backend.last.prompt == Prompt(messages=(
        {"role": "system", "content": "Help."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
         "tool_calls": [call("c1", a=1), call("c2")]},
        {"role": "tool", "content": "7", "tool_call_id": "c2"},
        {"role": "assistant", "content": "I look\nagain.", "reasoning_content": "Again.\nHm.",
         "tool_calls": [call("c3")]},
        {"role": "tool", "content": "8", "tool_call_id": "c3"},
        {"role": "assistant", "content": "Eight."},
        {"role": "assistant", "content": "Really."},
    ))  # fmt: skip


async def test_tools_of_namespaces_and_custom_tools_are_functions_to_the_model() -> None:
    """`input.input` is what a custom tool was called with; `tools` are told as they came."""
    tools = [GROUP, {"type": "web_search"}, OTHER]
    items = [USER, CUSTOM_CALL, {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}]
    async with gateway(FakeBackend()) as g:
        found = await g.post(ROUTE.path, ROUTE.body(model="demo", tools=tools, input=items))
        assert found.status_code == 200, found.text
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
            "additionalProperties": False}  # fmt: skip
    offered = {each["function"]["name"]: each["function"] for each in g.backend.last.prompt.tools}
    assert list(offered) == ["f", "patch", "g"]
    assert offered["patch"] == {"name": "patch", "description": "Apply a patch.", "parameters": text}
    assert g.backend.last.prompt.messages is not None
    (call,) = g.backend.last.prompt.messages[1]["tool_calls"]
    assert call["function"] == {"name": "patch", "arguments": {"input": "+a"}}
    assert g.backend.last.prompt.messages[2]["content"] == "done"
    assert found.json()["tools"] == [
        GROUP, {"type": "web_search"}, {**OTHER, "description": None, "strict": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"effort": "low"}, {"reasoning_effort": "low"}),
        ({"effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"summary": "auto"}, {}),
    ],
)
async def test_the_effort_of_reasoning_is_for_the_template(fields: Any, told: dict[str, Any]) -> None:
    async with gateway(FakeBackend()) as g:
        found = await g.post(ROUTE.path, ROUTE.body(model="demo", reasoning=fields))
    assert g.backend.last.prompt.templating.variables == told
    assert "x-ignored-fields" not in found.headers
    assert found.json()["reasoning"] == {"effort": None, "summary": None, **fields}


def test_thinking_token_budget_limits_the_thoughts() -> None:
    raw = json.dumps(ROUTE.body(thinking_token_budget=64)).encode()
    call = DIALECT.parse(raw)
    assert isinstance(call, Call)
    (request,) = call.requests
    assert request.thinking_tokens == 64


async def test_a_call_that_is_required_names_the_tools_that_are_ignored() -> None:
    tools = [{"type": "web_search"}, {"type": "image_generation"}]
    async with gateway(FakeBackend()) as g:
        answer = await g.post(ROUTE.path, ROUTE.body(model="demo", tools=tools, tool_choice="required"))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tool_choice"
    assert "tools.0 (web_search), tools.1 (image_generation)" in error["message"]


async def test_what_nothing_comes_of_is_listed() -> None:
    fields = {
        "store": True, "max_tool_calls": 3, "service_tier": "flex", "text": {"verbosity": "high"},
        "include": ["reasoning.encrypted_content"], "nonsense": 1, "background": False,
        "tools": [TOOL, {"type": "web_search"}, {**CUSTOM, "format": LARK}],
    }  # fmt: skip
    async with gateway(FakeBackend()) as g:
        found = await g.post(ROUTE.path, ROUTE.body(model="demo", **fields))
    assert found.headers["x-ignored-fields"].split(", ") == [
        "nonsense", "max_tool_calls", "service_tier", "text.verbosity",
        "include.reasoning.encrypted_content", "tools.1", "tools.2.format",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"user": "ann", "safety_identifier": "x"}, "ann"),
        ({"safety_identifier": "bob", "prompt_cache_key": "x"}, "bob"),
        ({"prompt_cache_key": "carl"}, "carl"),
        ({}, None),
    ],
)
def test_a_split_sticks_to_whom_the_client_names(fields: dict[str, str], key: str | None) -> None:
    call = DIALECT.parse(json.dumps(ROUTE.body(**fields)).encode())
    assert isinstance(call, Call)
    assert call.user == key


@module_loop
async def test_a_response_tells_what_was_asked(client: httpx.AsyncClient) -> None:
    fields: dict[str, Any] = {
        "instructions": "Be brief.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9,
        "tools": [TOOL],
        "tool_choice": "none", "parallel_tool_calls": False, "max_output_tokens": 3, "user": "ann",
        "safety_identifier": "s", "prompt_cache_key": "p", "top_logprobs": 1,
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "low"},
    }  # fmt: skip
    found = (await ROUTE.ask(client, **fields)).json()
    fields["tools"] = [{**TOOL, "description": None, "strict": None}]
    fields["reasoning"] = {"effort": "low", "summary": None}
    assert {name: found[name] for name in fields} == fields
    assert (found["object"], found["store"], found["previous_response_id"]) == ("response", True, None)


@module_loop
async def test_a_stream_grows_into_the_whole_response(client: httpx.AsyncClient) -> None:
    for seed in (1, 2, 3):
        options = {"temperature": 2, "seed": seed, "max_output_tokens": VARIED["max_tokens"]}
        whole = await answer(client, **options)
        events = await streamed(client, **options)
        assert texts(events) == whole.output_text != ""
        first, second, *_, last = events
        assert [first.type, second.type] == ["response.created", "response.in_progress"]
        assert first.response.output == []
        assert last.response.output_text == whole.output_text
        assert last.type == f"response.{whole.status}"
        assert last.response.usage == whole.usage


@module_loop
async def test_the_length_makes_a_response_incomplete(client: httpx.AsyncClient) -> None:
    short = await answer(client, max_output_tokens=2, ignore_eos=True)
    assert short.status == "incomplete"
    assert short.incomplete_details is not None
    assert short.incomplete_details.reason == "max_output_tokens"
    assert short.output[0].model_dump()["status"] == "incomplete"
    assert short.usage is not None
    assert short.usage.output_tokens == 2


@module_loop
@pytest.mark.parametrize("fields", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
async def test_log_probabilities_are_the_same_streamed_and_whole(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    options = {**fields, "temperature": 0, "max_output_tokens": 12}
    (message,) = (await answer(client, **options)).model_dump()["output"]
    (part,) = message["content"]
    listed = part["logprobs"]
    assert "".join(each["token"] for each in listed) == part["text"]
    assert all(len(each["top_logprobs"]) == fields.get("top_logprobs", 0) for each in listed)
    deltas = [e for e in await streamed(client, **options) if e.type == "response.output_text.delta"]
    told = [token.model_dump() for each in deltas for token in each.logprobs]
    assert [each["token"] for each in told] == [each["token"] for each in listed]
    assert [each["logprob"] for each in told] == pytest.approx([each["logprob"] for each in listed], abs=1e-4)


@module_loop
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief.", "input": [USER, CALL, CALL_OUTPUT]},
        {"tools": [TOOL, OTHER]},
        {"tools": [TOOL, OTHER], "tool_choice": "none"},
        {"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}},
    ],
    ids=["a-question", "items", "tools", "tools-not-offered", "variables"],
)
async def test_the_count_of_input_tokens_is_what_a_response_is_charged(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    body = ROUTE.body(**fields)
    counted = await client.post(f"/openai{ROUTE.path}/input_tokens", json=body)
    assert counted.status_code == 200, counted.text
    usage = (await answer(client, **fields)).usage
    assert usage is not None
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": usage.input_tokens}


@module_loop
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"tools": 5}, "tools"),
        ({"text": 5}, "text"),
        ({"conversation": "c"}, "conversation"),
    ],
)
async def test_what_cannot_be_counted_is_refused_by_name(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    found = await client.post(f"/openai{ROUTE.path}/input_tokens", json=ROUTE.body(**fields))
    assert found.status_code == 400
    assert error_of(found)["param"] == param


@module_loop
async def test_there_are_none_unless_asked_for(client: httpx.AsyncClient) -> None:
    (message,) = (await answer(client)).model_dump()["output"]
    assert message["content"][0]["logprobs"] == []


@module_loop
@pytest.mark.own_server
async def test_a_format_binds_the_text(client: httpx.AsyncClient) -> None:
    schema = {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["n"], "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "name": "a", "strict": True, "schema": schema}
    found = await answer(client, text={"format": form}, max_output_tokens=60, temperature=0)
    assert json.loads(found.output_text)["n"] in (3, 4, 5)


@module_loop
@pytest.mark.own_server
async def test_a_forced_call_of_a_custom_tool_is_its_text(client: httpx.AsyncClient) -> None:
    """Whole, and in the deltas of a stream."""
    options = {
        "tools": [CUSTOM], "tool_choice": {"type": "custom", "name": "patch"},
        "temperature": 0, "max_output_tokens": 40,
    }  # fmt: skip
    whole = (await answer(client, **options)).output[0]
    assert (whole.type, whole.name) == ("custom_tool_call", "patch")
    events = await streamed(client, **options)
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert whole.input
    assert "".join(deltas) == whole.input == events[-1].response.output[0].input


@module_loop
@pytest.mark.own_server
@pytest.mark.parametrize(
    "choice", ["required", {"type": "custom", "name": "patch"}], ids=["required", "named"]
)
@pytest.mark.parametrize(
    ("syntax", "definition"),
    [("regex", '[+-]"[a-c]{2}"\\n'), ("lark", 'start: ("+" | "-") "\\"" /[a-c]/~2 "\\"\\n"')],
    ids=["regex", "lark"],
)
async def test_a_forced_text_matches_its_format(
    client: httpx.AsyncClient, syntax: str, definition: str, choice: Any
) -> None:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    options = {
        "tools": [{**CUSTOM, "format": form}], "tool_choice": choice, "seed": 1, "max_output_tokens": 60,
    }  # fmt: skip
    reply = await ROUTE.ask(client, **options)
    assert "x-ignored-fields" not in reply.headers
    (call,) = reply.json()["output"]
    assert re.fullmatch('[+-]"[a-c]{2}"\n', call["input"])
    events = await streamed(client, **options)
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call["input"]


async def test_a_grammar_that_cannot_be_read_names_its_place_and_line() -> None:
    group = {
        "type": "namespace",
        "name": "n",
        "tools": [{**CUSTOM, "format": {**LARK, "definition": "start:\nb"}}],
    }
    async with gateway(FakeBackend()) as g:
        body = ROUTE.body(model="demo", tools=[TOOL, group], tool_choice="required")
        answer = await g.post(ROUTE.path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools.1.tools.0.format.definition"
    assert 'tool "patch": line 2: a colon must follow b' in answer.json()["error"]["message"]


@module_loop
@pytest.mark.own_server
async def test_a_forced_call_is_an_item(client: httpx.AsyncClient) -> None:
    parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    options = {
        "tools": [{**TOOL, "parameters": parameters}, OTHER], "temperature": 0, "max_output_tokens": 80,
        "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [NAMED]},
    }  # fmt: skip
    whole = (await answer(client, **options)).output
    assert whole[0].type == "function_call"
    assert (whole[0].name, json.loads(whole[0].arguments)) == ("f", {"city": "Oslo"})
    events = await streamed(client, **options)
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    (call, *_) = events[-1].response.output
    assert (call.name, call.arguments) == (whole[0].name, whole[0].arguments)
    pieces = [each.delta for each in events if each.type == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        (FinishReason.EOS, "completed", None),
        (FinishReason.STOP, "completed", None),
        (FinishReason.TOOL_CALLS, "completed", None),
        (FinishReason.ABORT, "completed", None),
        (FinishReason.LENGTH, "incomplete", "max_output_tokens"),
        (FinishReason.CONTEXT, "incomplete", "max_output_tokens"),
        (FinishReason.FILTERED, "incomplete", "content_filter"),
    ],
)
async def test_the_words_for_an_end(
    finish: FinishReason, status: str, reason: str | None, stream: bool
) -> None:
    async with gateway(FakeBackend(finish=finish)) as g:
        found = await g.post(ROUTE.path, ROUTE.body(model="demo", stream=stream))
    if stream:
        *_, last = events_of(found.text)
        response = last.response
        assert last.type == f"response.{status}"
    else:
        response = Response.model_validate(found.json())
    assert response.status == status
    assert (response.incomplete_details and response.incomplete_details.reason) == reason
    assert response.output_text == "".join(WORDS)
    assert (response.completed_at is not None) == (status == "completed")


async def test_usage_is_told_in_the_responses_own_words() -> None:
    async with gateway(FakeBackend()) as g:
        usage = (await g.post(ROUTE.path, ROUTE.body(model="demo"))).json()["usage"]
    assert usage == {
        "input_tokens": PROMPT_TOKENS,
        "input_tokens_details": {"cached_tokens": CACHED_TOKENS, "cache_write_tokens": 0},
        "output_tokens": len(WORDS),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": PROMPT_TOKENS + len(WORDS),
    }


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (GenerationFailed("the engine failed"), "server_error"),
        (QuotaExceeded("the limit of tokens is reached", retry_after_s=1.0), "rate_limit_exceeded"),
    ],
)
async def test_a_failure_after_the_first_byte_is_a_failed_response(failure: Exception, code: str) -> None:
    async with gateway(FakeBackend(fail_after=2, failure=failure)) as g:
        found = await g.post(ROUTE.path, ROUTE.body(model="demo", stream=True))
        assert found.status_code == 200
        *_, last = events_of(found.text)
        assert last.type == "response.failed"
        assert last.response.status == "failed"
        assert (last.response.error.code, last.response.error.message) == (code, str(failure))
        assert last.response.output_text == "".join(WORDS[:2])
        await g.check()
