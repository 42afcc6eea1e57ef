"""POST /v1/messages of Anthropic: fields, blocks, and events, which are of the anthropic package's types."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest
from anthropic.types import Message

from serve_app.api.dialects.anthropic.dialect import MessageDialect
from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason, GrammarKind, Overflow, Prompt, Templating, ToolMode, Usage
from tests.conformance import conftest
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.openai_bounds import ANSWER, VARIED
from tests.support.fakes_backend import CACHED_TOKENS, PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import gateway
from tests.support.message_events import message_events_of, message_of

module_loop = pytest.mark.asyncio(loop_scope="module")

PATH: Final = "/v1/messages"
DIALECT: Final = MessageDialect(notes_pictures=True)
USER: Final[Any] = {"role": "user", "content": "Tell me!"}
TOOL: Final[Any] = {"name": "f", "input_schema": {"type": "object"}}
OTHER: Final[Any] = {**TOOL, "name": "g"}
SCHEMA: Final[Any] = {"type": "json_schema", "schema": {"type": "object"}}
TEXT: Final[Any] = {"type": "text", "text": "a"}
THOUGHT: Final[Any] = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
CALL: Final[Any] = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
RESULT: Final[Any] = {"type": "tool_result", "tool_use_id": "c1", "content": "5"}

BOUNDS: Bounds = {
    "messages": ([[USER]], [None, [], 5, {}, "x", [5], [{}], [{"role": "critic", "content": "x"}]]),
    "system": (["", "Be brief.", [TEXT, TEXT], [], None], [5, [5], [{"type": "image"}], [{"type": "text"}]]),
    "max_tokens": ([0, 1, 3.0, 2**31 - 1], [None]),
    "stop_sequences": (
        [[], ["x"] * 1024, ["x" * 1024], None], ["x", ["x"] * 1025, ["x" * 1025], [""], [5], 5],
    ),
    "tools": (
        [[], [TOOL], [{**TOOL, "type": "custom"}], [{**TOOL, "name": "n" * 128}],
         [{**TOOL, "cache_control": {"type": "ephemeral"}, "defer_loading": True}],
         None],
        [5, [5], [{"name": "f"}], [{"input_schema": {}}], [TOOL, TOOL], [{**TOOL, "name": "n" * 129}],
         [{**TOOL, "name": "a b"}], [{"type": "web_search_20250305", "name": "web_search"}],
         [{**TOOL, "type": 5}], [{**TOOL, "input_schema": {"type": "string"}}],
         [{**TOOL, "name": f"f{i}"} for i in range(513)]],
    ),
    "tool_choice": (
        [{"type": "auto"}, {"type": "none"}, {"type": "auto", "disable_parallel_tool_use": True}, None],
        ["auto", 5, {}, {"type": "required"}, {"type": "any"}, {"type": "tool", "name": "f"},
         {"type": "auto", "disable_parallel_tool_use": 1}],
    ),
    "thinking": (
        [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "between_tools"},
         {"type": "disabled"}, {"type": "adaptive", "display": "omitted"},
         {"type": "enabled", "display": "summarized"}, None],
        [5, {"type": "much"}, {"type": "enabled", "budget_tokens": 0}, {"display": "loud"}],
    ),
    "output_config": (
        [{}, {"effort": "low"}, {"effort": "max"}, {"effort": None}, {"format": None}, None],
        [5, {"effort": "none"}, {"format": 5}, {"format": {}}, {"format": {"type": "json_schema"}},
         {"format": {"type": "json_object"}}],
    ),
    "output_format": ([None], [5, {"type": "text"}, {"type": "json_schema", "schema": "x"}]),
    "metadata": ([{}, {"user_id": "ann"}, {"user_id": "x" * 512}, {"user_id": None}, None],
                 [5, {"user_id": 5}, {"user_id": "x" * 513}]),
    "service_tier": (["auto", "standard_only", None], ["fast", 5]),
    "chat_template_kwargs": ([{}, {"enable_thinking": False}, None], [5, {"": 1}]),
    "add_generation_prompt": ([True, False, None], []),
    "continue_final_message": ([False, None], []),
}  # fmt: skip

# What the server cannot do, and what belongs to chats.
UNSUPPORTED: Final[dict[str, Any]] = {
    "mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}],
    "container": "c1",
    "max_completion_tokens": 5,
    "response_format": {"type": "json_object"},
    "functions": [],
    "function_call": "auto",
    "guided_regex": "a",
    "structured_outputs": {"regex": "a"},
}

TOGETHER: Final[dict[str, tuple[dict[str, Any], str | None]]] = {
    "any": ({"tools": [TOOL], "tool_choice": {"type": "any"}}, None),
    "a-tool": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, None),
    "no-such-tool": ({"tools": [OTHER], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name"),
    "stop": ({"stop": ["x"], "stop_sequences": []}, None),
    "stop-and-stop_sequences": ({"stop": ["x"], "stop_sequences": ["y"]}, "stop"),
    "continue_final_message": (
        {"messages": [USER, {"role": "assistant", "content": "The"}], "continue_final_message": True}, None,
    ),
    "continue_final_message-and-add_generation_prompt": (
        {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message",
    ),
}  # fmt: skip


def told(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def answered(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


SOUND: Final[dict[str, list[Any]]] = {
    "texts": [told(TEXT, {**TEXT, "cache_control": {"type": "ephemeral"}})],
    "calls-and-results": [USER, answered(TEXT, CALL), told(RESULT)],
    "a-result-in-blocks": [USER, answered(CALL), told({**RESULT, "content": [TEXT], "is_error": True})],
    "a-result-of-nothing": [USER, answered(CALL), told({"type": "tool_result", "tool_use_id": "c1"})],
    "thoughts": [USER, answered(THOUGHT, {"type": "redacted_thinking", "data": "x"}, TEXT), USER],
    "an-answer-that-goes-on": [USER, {"role": "assistant", "content": "The"}],
    "a-document": [told({"type": "document", "source": {"type": "text", "data": "x"}, "title": "T"})],
    "a-document-in-blocks": [told({"type": "document", "source": {"type": "content", "content": [TEXT]}})],
    "a-search-result": [told({"type": "search_result", "title": "T", "source": "S", "content": [TEXT]})],
    "system": [{"role": "system", "content": "Be brief."}, USER, {"role": "system", "content": [TEXT]}],
}
UNSOUND: Final[dict[str, tuple[list[Any], str]]] = {
    "role": ([{"role": "tool", "content": "x"}], "messages.0.role"),
    "content": ([{"role": "user"}], "messages.0.content"),
    "content-of-no-block": ([USER, {"role": "user", "content": []}], "messages.1.content"),
    "content-a-number": ([{"role": "user", "content": 5}], "messages.0.content"),
    "a-block-of-no-type": ([told({"text": "x"})], "messages.0.content.0"),
    "too-many-blocks": ([told(*[TEXT] * 257)], "messages.0.content"),
    "an-upload": ([told(TEXT, {"type": "container_upload"})], "messages.0.content.1.type"),
    "a-pdf": ([told({"type": "document", "source": {"type": "base64"}})], "messages.0.content.0.source.type"),
    "source": ([told({"type": "document"})], "messages.0.content.0.source"),
    "text": ([told({"type": "text"})], "messages.0.content.0.text"),
    "a-call-of-the-user": ([told(CALL)], "messages.0.content.0.type"),
    "a-result-of-the-assistant": ([answered(RESULT)], "messages.0.content.0.type"),
    "a-tool-of-the-server": ([answered({"type": "server_tool_use"})], "messages.0.content.0.type"),
    "thinking": ([answered({**THOUGHT, "thinking": None})], "messages.0.content.0.thinking"),
    "input": ([answered({**CALL, "input": "{}"})], "messages.0.content.0.input"),
    "id": ([answered({**CALL, "id": None})], "messages.0.content.0.id"),
    "name": ([answered({**CALL, "name": ""})], "messages.0.content.0.name"),
    "tool_use_id": ([told({**RESULT, "tool_use_id": 5})], "messages.0.content.0.tool_use_id"),
    "a-call-as-a-result": (
        [told({**RESULT, "content": [CALL]})], "messages.0.content.0.content.0.type",
    ),
    "a-call-without-a-result": ([USER, answered(CALL)], "messages"),
}  # fmt: skip


def body(**fields: Any) -> dict[str, Any]:
    return {"model": conftest.MODEL, "messages": [USER], "max_tokens": 2, **fields}


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(PATH, json=body(**fields))


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error, whose shape must be right."""
    found = answer.json()
    if (list(found), list(found["error"])) != (["type", "error"], ["type", "message"]):
        raise AssertionError(answer.text)
    error: dict[str, Any] = found["error"]
    return error


async def answer(client: httpx.AsyncClient, **fields: Any) -> Message:
    """A whole message, with every member that the package knows of the type that it has there."""
    found = await ask(client, **fields)
    assert found.status_code == 200, found.text
    return Message.model_validate(found.json(), strict=True)


async def streamed(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    found = await ask(client, stream=True, **fields)
    assert found.status_code == 200, found.text
    return message_events_of(found.text)


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(ANSWER) + accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    found = await ask(client, **{field: value})
    assert found.status_code == 200, found.text


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(ANSWER) + refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    found = await ask(client, **{field: value})
    assert found.status_code == 400
    assert error_of(found)["type"] == "invalid_request_error"
    assert error_of(found)["message"].startswith(field)


@module_loop
@pytest.mark.parametrize(("fields", "complaint"), TOGETHER.values(), ids=TOGETHER.keys())
async def test_fields_beside_each_other(
    client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None
) -> None:
    found = await ask(client, **fields)
    assert found.status_code == (200 if complaint is None else 400), found.text
    if complaint is not None:
        assert error_of(found)["message"].startswith(f"{complaint}: ")


@module_loop
@pytest.mark.parametrize(("field", "value"), UNSUPPORTED.items(), ids=UNSUPPORTED.keys())
async def test_what_cannot_be_is_an_error(client: httpx.AsyncClient, field: str, value: Any) -> None:
    found = await ask(client, **{field: value})
    assert found.status_code == 400
    assert error_of(found)["message"].startswith(f"{field}: ")


@module_loop
@pytest.mark.parametrize("messages", SOUND.values(), ids=SOUND.keys())
async def test_messages_that_are_accepted(client: httpx.AsyncClient, messages: list[Any]) -> None:
    assert (await answer(client, messages=messages)).role == "assistant"


@module_loop
@pytest.mark.parametrize(("messages", "param"), UNSOUND.values(), ids=UNSOUND.keys())
async def test_messages_that_are_refused(client: httpx.AsyncClient, messages: list[Any], param: str) -> None:
    found = await ask(client, messages=messages)
    assert found.status_code == 400
    assert error_of(found)["message"].startswith(f"{param}: ")


async def prompt_of(**fields: Any) -> Prompt:
    """What a model reads of a body."""
    async with gateway(FakeBackend()) as g:
        found = await g.post(PATH, body(model="demo", **fields))
        assert found.status_code == 200, found.text
    return g.backend.last.prompt


async def test_turns_of_one_role_are_one_message() -> None:
    """`messages.role` and `messages.content` make the turns, in which `messages.tool_use_id` answers a call
    with its `messages.input`; `messages.thinking` goes with what was said next."""
    prompt = await prompt_of(
        system=[TEXT, {"type": "text", "text": "b"}],
        messages=[
            {"role": "system", "content": "Be brief."},
            USER,
            told(TEXT),
            answered(THOUGHT, {"type": "text", "text": "I look."}, CALL, {**CALL, "id": "c2", "input": {}}),
            told(RESULT, {**RESULT, "tool_use_id": "c2", "content": [TEXT, TEXT], "is_error": True}, TEXT),
            answered({**THOUGHT, "thinking": ""}, {**THOUGHT, "thinking": "Well."}, TEXT),
            {"role": "assistant", "content": "b"},
            USER,
        ],
    )

    def call(id: str, **arguments: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", "arguments": arguments}, "id": id}

    assert prompt == Prompt(messages=(
        {"role": "system", "content": "a\nb\nBe brief."},
        {"role": "user", "content": "Tell me!\na"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.",
         "tool_calls": [call("c1", a=1), call("c2")]},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
        {"role": "tool", "content": "a\na", "tool_call_id": "c2"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "a\nb", "reasoning_content": "Well."},
        {"role": "user", "content": "Tell me!"},
    ))  # fmt: skip


async def test_documents_and_search_results_are_read_behind_their_heads() -> None:
    """A document has its text in `messages.source`."""
    document = {"type": "document", "source": {"type": "text", "data": "x"}, "title": "T", "context": "C"}
    found = {"type": "search_result", "title": "T", "source": "S", "content": [TEXT]}
    inner = {"type": "document", "source": {"type": "content", "content": "y"}}
    prompt = await prompt_of(messages=[told(document, found, inner)])
    assert prompt.messages == (
        {"role": "user", "content": "title: T\ncontext: C\nx\ntitle: T\nsource: S\na\ny"},
    )


async def test_later_words_of_the_system_stand_in_the_users_turn() -> None:
    """By `messages.role`: few templates know such a message anywhere but first."""
    prompt = await prompt_of(messages=[USER, {"role": "system", "content": "Stop."}, answered(TEXT), USER])
    assert prompt.messages is not None
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "user"]
    assert prompt.messages[0]["content"] == "Tell me!\n<system-reminder>\nStop.\n</system-reminder>"


@pytest.mark.parametrize(
    ("system", "read"),
    [
        ("x-anthropic-billing-header: cch=1;\nBe brief.", "Be brief."),
        ([{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, TEXT], "a"),
        ([TEXT, {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}],
         "a\nx-anthropic-billing-header: cch=1;"),
        ("x-anthropic-billing-header: cch=1;", None),
        ("", None),
    ],
)  # fmt: skip
async def test_the_model_does_not_read_what_claude_code_tells_its_accounts(
    system: Any, read: str | None
) -> None:
    """It differs from request to request, so nothing of `system` behind it would be found in the cache."""
    prompt = await prompt_of(system=system)
    first = [] if read is None else [{"role": "system", "content": read}]
    assert prompt.messages == (*first, USER)


@pytest.mark.parametrize(
    ("fields", "goes_on"),
    [
        ({}, True),
        ({"add_generation_prompt": True}, False),
        ({"continue_final_message": False}, False),
        ({"messages": [USER]}, False),
        ({"messages": [USER, answered(THOUGHT)]}, False),
    ],
)
async def test_an_assistants_last_message_goes_on(fields: dict[str, Any], goes_on: bool) -> None:
    prompt = await prompt_of(**{"messages": [USER, answered(TEXT)], **fields})
    assert prompt.templating == Templating(add_generation_prompt=not goes_on, continue_final_message=goes_on)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "between_tools"}}, {}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True},
        ),
    ],
)
async def test_thinking_type_and_output_config_effort_are_for_the_template(
    fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert (await prompt_of(**fields)).templating.variables == variables


async def test_agents_bring_many_tools() -> None:
    prompt = await prompt_of(tools=[{**TOOL, "name": f"f{i}"} for i in range(512)])
    assert len(prompt.tools) == 512


async def test_tools_and_choices() -> None:
    """`tool_choice` says whether tools are called, its `disable_parallel_tool_use` how many."""
    tool = {**TOOL, "description": "d", "strict": True, "input_schema": {"type": "object", "properties": {}}}
    for choice, mode, name, parallel in (
        (None, ToolMode.AUTO, None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolMode.AUTO, None, False),
        ({"type": "any"}, ToolMode.REQUIRED, None, True),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolMode.REQUIRED, None, False),
        ({"type": "tool", "name": "f"}, ToolMode.NAMED, "f", False),
        ({"type": "none"}, ToolMode.NONE, None, True),
    ):
        async with gateway(FakeBackend()) as g:
            found = await g.post(PATH, body(model="demo", tools=[tool], tool_choice=choice))
            assert found.status_code == 200, found.text
        asked = g.backend.last
        assert (asked.tool_choice.mode, asked.tool_choice.name, asked.tool_choice.parallel) == (
            mode, name, parallel,
        )  # fmt: skip
        assert asked.prompt.tools == (
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": "d",
                    "parameters": tool["input_schema"],
                    "strict": True,
                },
            },
        )


@pytest.mark.parametrize("fields", [{"output_config": {"format": SCHEMA}}, {"output_format": SCHEMA}])
async def test_a_format_is_a_schema_of_the_answer(fields: dict[str, Any]) -> None:
    """`output_config.format`, and `output_format` of betas."""
    async with gateway(FakeBackend()) as g:
        await g.post(PATH, body(model="demo", **fields))
    grammar = g.backend.last.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == (GrammarKind.SCHEMA, SCHEMA["schema"])


async def test_what_nothing_comes_of_is_listed() -> None:
    """What asks for a cache is served without a word."""
    fields = {
        "context_management": {"edits": []}, "thinking": {"type": "enabled", "budget_tokens": 2048},
        "cache_control": {"type": "ephemeral"}, "mcp_servers": [], "service_tier": "standard_only",
        "speed": None,
    }  # fmt: skip
    async with gateway(FakeBackend()) as g:
        found = await g.post(f"{PATH}?beta=true", body(model="demo", **fields))
    assert found.headers["x-ignored-fields"] == "context_management"


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"user": "ann", "metadata": {"user_id": "x"}}, "ann"),
        ({"metadata": {"user_id": "bob"}}, "bob"),
        ({"metadata": {}}, None),
        ({}, None),
    ],
)
def test_a_split_sticks_to_whom_the_client_names(fields: dict[str, Any], key: str | None) -> None:
    """By `user`, else by `metadata.user_id`."""
    assert DIALECT.parse(json.dumps(body(**fields)).encode()).user == key


def test_thinking_budget_tokens_limit_the_thoughts() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2048}
    (request,) = DIALECT.parse(json.dumps(body(thinking=thinking)).encode()).requests
    assert request.thinking_tokens == 2048


def test_stop_sequences_and_max_tokens_are_those_of_the_request() -> None:
    call = DIALECT.parse(json.dumps(body(stop_sequences=["x", "y"], max_tokens=7)).encode())
    (request,) = call.requests
    assert (request.stop, request.sampling.max_tokens, request.overflow) == (("x", "y"), 7, Overflow.OPERATOR)


@module_loop
async def test_a_stream_grows_into_the_whole_message(client: httpx.AsyncClient) -> None:
    for seed in (1, 2, 3):
        options = {"temperature": 2, "seed": seed, "max_tokens": VARIED["max_tokens"]}
        whole, events = await answer(client, **options), await streamed(client, **options)
        grown = message_of(events)
        assert text_of(grown) == text_of(whole) != ""
        assert (grown.stop_reason, grown.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
        assert grown.usage.output_tokens == whole.usage.output_tokens
        start = events[0]["message"]
        assert (start["content"], start["stop_reason"]) == ([], None)


@module_loop
async def test_max_tokens_end_a_message_and_none_read_the_prompt_alone(client: httpx.AsyncClient) -> None:
    short = await answer(client, max_tokens=2, ignore_eos=True)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    nothing = await answer(client, max_tokens=0)
    assert (nothing.content, nothing.stop_reason, nothing.usage.output_tokens) == ([], "max_tokens", 0)


@module_loop
@pytest.mark.own_server
async def test_more_max_tokens_than_fit_fill_the_window(client: httpx.AsyncClient) -> None:
    full = await answer(client, max_tokens=2**31 - 1, ignore_eos=True)
    assert full.stop_reason == "model_context_window_exceeded"
    assert full.usage.input_tokens + (full.usage.cache_read_input_tokens or 0) + full.usage.output_tokens == (
        await window_of(client)
    )


async def window_of(client: httpx.AsyncClient) -> int:
    listed = await client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
    window: int = listed.json()["data"][0]["max_input_tokens"]
    return window


@module_loop
@pytest.mark.own_server
async def test_a_stop_sequence_is_told(client: httpx.AsyncClient) -> None:
    """Whole and streamed, by `stop_sequences` and by `stop`."""
    free = text_of(await answer(client, temperature=0, max_tokens=12))
    word = free.split()[1]
    for field in ("stop_sequences", "stop"):
        options = {"temperature": 0, "max_tokens": 12, field: ["nothing of it", word]}
        for found in (await answer(client, **options), message_of(await streamed(client, **options))):
            assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", word)
            assert text_of(found) == free[: free.index(word)]


@module_loop
@pytest.mark.own_server
async def test_a_format_binds_the_text(client: httpx.AsyncClient) -> None:
    schema = {
        "type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["n"], "additionalProperties": False,
    }  # fmt: skip
    config = {"format": {"type": "json_schema", "schema": schema}}
    found = await answer(client, output_config=config, max_tokens=60, temperature=0)
    assert json.loads(text_of(found))["n"] in (3, 4, 5)


@module_loop
@pytest.mark.own_server
async def test_a_forced_call_is_a_block(client: httpx.AsyncClient) -> None:
    schema = {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"], "additionalProperties": False,
    }  # fmt: skip
    options = {
        "tools": [{"name": "f", "input_schema": schema}, OTHER], "tool_choice": {"type": "tool", "name": "f"},
        "max_tokens": 80, "temperature": 0,
    }  # fmt: skip
    for found in (await answer(client, **options), message_of(await streamed(client, **options))):
        (block,) = found.content
        assert block.type == "tool_use"
        assert (block.name, list(block.input)) == ("f", ["city"])
        assert block.id
        assert found.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("finish", "clamped", "reason"),
    [
        (FinishReason.EOS, None, "end_turn"),
        (FinishReason.ABORT, None, "end_turn"),
        (FinishReason.LENGTH, None, "max_tokens"),
        (FinishReason.CONTEXT, None, "model_context_window_exceeded"),
        (FinishReason.LENGTH, 56, "model_context_window_exceeded"),
        (FinishReason.TOOL_CALLS, None, "tool_use"),
        (FinishReason.FILTERED, None, "refusal"),
    ],
)
async def test_the_words_for_an_end(finish: FinishReason, clamped: int | None, reason: str) -> None:
    usage = Usage(prompt_tokens=200, completion_tokens=56)  # a full window
    async with gateway(FakeBackend(finish=finish, usage=usage, clamped=clamped)) as g:
        whole = await g.post(PATH, body(model="demo"))
        stream = await g.post(PATH, body(model="demo", stream=True))
    for found in (Message.model_validate(whole.json()), message_of(message_events_of(stream.text))):
        assert found.stop_reason == reason
        assert (found.stop_details is not None) == (reason == "refusal")
        assert text_of(found) == "".join(WORDS)


async def test_usage_tells_what_the_cache_had_apart() -> None:
    async with gateway(FakeBackend()) as g:
        whole = await g.post(PATH, body(model="demo"))
        stream = message_events_of((await g.post(PATH, body(model="demo", stream=True))).text)
    expected = {
        "input_tokens": PROMPT_TOKENS - CACHED_TOKENS, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": CACHED_TOKENS, "output_tokens": len(WORDS),
        "output_tokens_details": {"thinking_tokens": 0},
    }  # fmt: skip
    assert whole.json()["usage"] == stream[-2]["usage"] == expected
    assert stream[0]["message"]["usage"] == {**expected, "output_tokens": 1}


async def test_a_whole_message_member_by_member() -> None:
    async with gateway(FakeBackend()) as g:
        found = await g.client.post(PATH, json=body(model="demo"), headers={"x-request-id": "abc"})
    assert found.headers["request-id"] == "abc"
    message = found.json()
    assert message.pop("id").startswith("msg_")
    assert message.pop("usage")
    assert message == {
        "type": "message", "role": "assistant", "model": "demo",
        "content": [{"type": "text", "text": "".join(WORDS)}],
        "stop_reason": "max_tokens", "stop_sequence": None, "stop_details": None,
    }  # fmt: skip


async def test_a_failure_after_the_first_byte_is_an_event() -> None:
    backend = FakeBackend(fail_after=2, failure=GenerationFailed("the engine failed"))
    async with gateway(backend) as g:
        found = await g.post(PATH, body(model="demo", stream=True))
    *_, last = message_events_of(found.text)
    assert last == {"type": "error", "error": {"type": "api_error", "message": "the engine failed"}}


@pytest.mark.parametrize("base", ["", "/anthropic", "/serving-endpoints/anthropic", "/ai-gateway/anthropic"])
async def test_every_base_has_the_routes_and_the_errors(base: str) -> None:
    async with gateway(FakeBackend()) as g:
        assert (await g.post(f"{base}{PATH}", body(model="demo"))).status_code == 200
        counted = await g.post(f"{base}{PATH}/count_tokens", {"model": "demo", "messages": [USER]})
        assert counted.json() == {"input_tokens": 2}
        for path in (PATH, f"{PATH}/count_tokens"):
            unknown = await g.post(f"{base}{path}", body(model="nothing"))
            assert (unknown.status_code, error_of(unknown)["type"]) == (404, "not_found_error")


@module_loop
@pytest.mark.own_server
async def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_look_for(
    client: httpx.AsyncClient,
) -> None:
    for count in (520, 5_000):
        found = await ask(client, messages=[{"role": "user", "content": "7 " * count}])
        assert found.status_code == 400
        assert error_of(found)["message"].startswith("prompt is too long: ")


@module_loop
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief.", "messages": [USER, answered(CALL), told(RESULT)]},
        {"tools": [TOOL, OTHER]},
        {"tools": [TOOL, OTHER], "tool_choice": {"type": "none"}},
        {"messages": [USER, answered(TEXT)]},
    ],
    ids=["a-question", "calls", "tools", "tools-not-offered", "an-answer-that-goes-on"],
)
async def test_the_count_of_tokens_is_what_a_message_is_charged(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    asked = body(**fields)
    del asked["max_tokens"]
    counted = await client.post(f"{PATH}/count_tokens", json=asked)
    assert counted.status_code == 200, counted.text
    usage = (await answer(client, **fields)).usage
    assert counted.json() == {"input_tokens": usage.input_tokens + (usage.cache_read_input_tokens or 0)}


@module_loop
@pytest.mark.parametrize(
    ("fields", "param"),
    [({"messages": None}, "messages"), ({"tools": 5}, "tools"), ({"container": "c"}, "container"),
     ({"output_config": {"format": 5}}, "output_config.format")],
)  # fmt: skip
async def test_what_cannot_be_counted_is_refused_by_name(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    found = await client.post(f"{PATH}/count_tokens", json=body(**fields))
    assert found.status_code == 400
    assert error_of(found)["message"].startswith(f"{param}: ")
