"""POST /v3/responses: its fields beside those of chats, its items and its events."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from serve_app.errors import GenerationFailed, QuotaExceeded
from serve_app.types import FinishReason, Prompt, SamplingParams
from tests.conformance import conftest
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.ovms.asks import names
from tests.conformance.ovms.test_fields import BOUNDS as CHATS
from tests.support.fakes_backend import CACHED_TOKENS, PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import gateway
from tests.support.response_events import unnamed_events_of

module_loop = pytest.mark.asyncio(loop_scope="module")

PATH: Final = "/v3/responses"
QUESTION: Final = "Tell me about the sea."
VARIED: Final = {"temperature": 2, "max_output_tokens": 24, "input": "Tell me!"}

BOOLEAN: Final = ([True, False, None], [1, 0, "true"])
USER: Final = {"role": "user", "content": "x"}
FLAT: Final = {"type": "function", "name": "f", "parameters": {"type": "object"}}
NESTED: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL: Final = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
SCHEMA: Final = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
OUTPUT: Final = {"type": "function_call_output", "call_id": "c1", "output": "5"}

# Fields of chats that a response has as well, and those that it has not.
SHARED: Final[Bounds] = {
    name: bounds
    for name, bounds in CHATS.items()
    if name
    not in {
        *("messages", "max_tokens", "prompt_logprobs", "detokenize", "functions", "function_call"),
        *("stream_options", "tools", "tool_choice"),
    }
}
BOUNDS: Final[Bounds] = {
    "input": (["x", [USER]], [None, "", [], 5, {}, [5], [{}], [{"role": "critic", "content": "x"}]]),
    "instructions": (["", "Be brief.", None], [5, ["x"]]),
    "max_output_tokens": ([1, 3.0, pytest.param(None, marks=pytest.mark.own_server)], []),
    "top_logprobs": ([0, 20, None], []),
    "include": ([[], ["message.output_text.logprobs"], None], ["x", ["nonsense"], [5], 5]),
    "tools": (
        [[], [FLAT], [NESTED], None],
        [5, [5], [{"type": "function"}], [FLAT, NESTED], [{"type": "file_search"}],
         [{"type": "custom", "name": "f"}], [{**NESTED, "function": 5}]],
    ),
    "tool_choice": (["auto", "none", None], ["required", "any", 5, {"type": "function", "name": "f"}]),
    "text": ([{}, {"format": {"type": "text"}}, {"format": SCHEMA}, {"verbosity": "low"}, None],
             [5, {"format": 5}, {"format": {"type": "xml"}}, {"verbosity": "loud"}]),
    "reasoning": ([{}, {"effort": "low"}, {"effort": "none"}, {"summary": "auto"}, None],
                  [5, {"effort": "much"}, {"effort": 5}]),
    "stream_options": ([None], [{}, {"include_obfuscation": False}, 5]),
    "truncation": (["disabled", "auto", None], ["x", 5]),
    "store": ([True, False, None], []),
    "metadata": ([{}, {"a": "b"}, None], [5, {"a": 5}, {"k" * 65: ""}]),
    "safety_identifier": (["ann", None], ["x" * 513, 5]),
    "prompt_cache_key": (["ann", None], ["x" * 513, 5]),
    "service_tier": (["auto", "flex", None], ["cheap", 5]),
}  # fmt: skip

UNSUPPORTED: Final[dict[str, Any]] = {
    "previous_response_id": "resp_1", "conversation": "conv_1", "background": True, "prompt": {"id": "p"},
    "messages": [USER], "max_tokens": 5, "max_completion_tokens": 5, "functions": [], "function_call": "auto",
}  # fmt: skip

TOGETHER: Final[dict[str, tuple[dict[str, Any], str | None]]] = {
    "n=best_of": ({"n": 2, "best_of": 2}, None),
    "n-in-a-stream": ({"n": 2, "best_of": 2, "stream": True, "temperature": 1}, "n:"),
    "best_of-beams-in-a-stream": ({"best_of": 2, "stream": True}, "stream"),
    "include_obfuscation": ({"stream": True, "stream_options": {"include_obfuscation": True}}, None),
    "tool_choice-flat": ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "f"}}, None),
    "tool_choice-nested": (
        {"tools": [NESTED], "tool_choice": {"type": "function", "function": {"name": "f"}}}, None,
    ),
    "tool_choice-custom": (
        {"tools": [FLAT], "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.type",
    ),
    "tool_choice-of-another": (
        {"tools": [FLAT], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice",
    ),
    "response_format-beside-text": (
        {"response_format": {"type": "json_object"}, "text": {"format": SCHEMA}}, "response_format",
    ),
    "response_format-beside-plain-text": (
        {"response_format": {"type": "json_object"}, "text": {"format": {"type": "text"}}}, None,
    ),
    "logprobs-in-a-stream": ({"logprobs": True, "stream": True}, None),
}  # fmt: skip


def body(**fields: Any) -> dict[str, Any]:
    return {"model": conftest.MODEL, "input": QUESTION, "max_output_tokens": 2, **fields}


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(PATH, json=body(**fields))


async def answer(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    found = await ask(client, **fields)
    assert found.status_code == 200, found.text
    response: dict[str, Any] = found.json()
    return response


async def streamed(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    found = await ask(client, stream=True, **fields)
    assert found.status_code == 200, found.text
    return unnamed_events_of(found.text)


def said(response: dict[str, Any]) -> str:
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    return "".join(texts)


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(SHARED) + accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    found = await ask(client, **{field: value})
    assert found.status_code == 200, found.text


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(SHARED) + refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    names(await ask(client, **{field: value}), field)


@module_loop
@pytest.mark.parametrize(("fields", "complaint"), TOGETHER.values(), ids=TOGETHER.keys())
async def test_fields_beside_each_other(
    client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None
) -> None:
    found = await ask(client, **fields)
    if complaint is None:
        assert found.status_code == 200, found.text
    else:
        names(found, complaint)


@module_loop
@pytest.mark.parametrize(("field", "value"), UNSUPPORTED.items(), ids=UNSUPPORTED.keys())
async def test_what_cannot_be_is_an_error(client: httpx.AsyncClient, field: str, value: Any) -> None:
    names(await ask(client, **{field: value}), field)


async def test_fields_of_nobody_are_ignored_in_silence_and_known_ones_are_listed() -> None:
    async with gateway(FakeBackend()) as g:
        found = await g.post(
            PATH, body(model="demo", nonsense=1, store=True, truncation="auto", detokenize=False)
        )
    assert found.headers["x-ignored-fields"] == "truncation, store"


async def test_tokens_are_drawn_as_in_a_chat() -> None:
    fields = {"temperature": 0.5, "top_k": 3, "min_p": 0.1, "stop": ["x"], "seed": 5, "max_output_tokens": 7}
    async with gateway(FakeBackend()) as g:
        await g.post(PATH, body(model="demo", **fields))
        asked = g.backend.last
        await g.post("/v3/chat/completions", {
            "model": "demo", "messages": [USER], "max_tokens": 7,
            **{name: value for name, value in fields.items() if name != "max_output_tokens"},
        })  # fmt: skip
    assert asked.sampling == g.backend.last.sampling
    assert (asked.stop, asked.overflow) == (g.backend.last.stop, g.backend.last.overflow)
    assert asked.sampling == SamplingParams(temperature=0.5, top_k=3, min_p=0.1, seed=5, max_tokens=7)


async def test_thoughts_that_nothing_follows_are_a_message_too() -> None:
    """`input` is items, as OpenAI's; the product keeps what was only thought."""
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    items = [USER, thought, USER, {**thought, "content": [{"type": "reasoning_text", "text": "So."}]}, CALL,
             OUTPUT, thought]  # fmt: skip
    async with gateway(FakeBackend()) as g:
        found = await g.post(PATH, body(model="demo", input=items, instructions="Help."))
        assert found.status_code == 200, found.text
    call = {"type": "function", "function": {"name": "f", "arguments": {}}, "id": "c1"}
    assert g.backend.last.prompt == Prompt(messages=(
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm."},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "reasoning_content": "So.", "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "reasoning_content": "Hm."},
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"reasoning": {"effort": "low"}}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"reasoning": {"effort": "none"}}, {"enable_thinking": False, "reasoning_effort": "none"}),
        ({"reasoning": {"summary": "auto"}}, {}),
        (
            {"reasoning": {"effort": "high"}, "chat_template_kwargs": {"enable_thinking": False, "a": 1}},
            {"enable_thinking": False, "reasoning_effort": "high", "a": 1},
        ),
    ],
    ids=["any", "none", "no-effort", "variables-win"],
)
async def test_reasoning_with_an_effort_switches_thoughts_on(
    fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    async with gateway(FakeBackend()) as g:
        await g.post(PATH, body(model="demo", **fields))
    assert g.backend.last.prompt.templating.variables == variables
    assert g.backend.last.reasoning


async def test_add_generation_prompt_is_a_variable_of_chat_template_kwargs() -> None:
    async with gateway(FakeBackend()) as g:
        await g.post(PATH, body(model="demo", chat_template_kwargs={"add_generation_prompt": False}))
    assert not g.backend.last.prompt.templating.add_generation_prompt


@pytest.mark.parametrize("field", ["user", "safety_identifier", "prompt_cache_key"])
async def test_what_was_asked_is_told(field: str) -> None:
    """`metadata`, `instructions`, `temperature` and their like; nothing is told of what was not asked."""
    asked = {"metadata": {"a": "b"}, "instructions": "Help.", "temperature": 0.5, "top_p": 0.9, "min_p": 0.1,
             "parallel_tool_calls": False, "store": False}  # fmt: skip
    choice = {"type": "function", "function": {"name": "f"}}
    async with gateway(FakeBackend()) as g:
        found = (await g.post(PATH, body(model="demo", tools=[NESTED], tool_choice=choice, **asked))).json()
        plain = (await g.post(PATH, body(model="demo", **{field: "ann"}))).json()
    assert {name: found[name] for name in asked} == asked
    assert found["tools"] == [{**FLAT, "description": None, "strict": None}]
    assert found["tool_choice"] == {"type": "function", "name": "f"}
    assert not {"instructions", "temperature", "top_p", "min_p"} & plain.keys()


async def test_a_whole_response_member_by_member() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        found = (await g.post(PATH, body(model="demo"))).json()
    id, began, ended = found.pop("id"), found.pop("created_at"), found.pop("completed_at")
    assert id.startswith("resp-")
    assert began <= ended
    assert found == {
        "object": "response", "error": None, "model": "demo", "status": "completed",
        "parallel_tool_calls": True, "store": True, "text": {"format": {"type": "text"}},
        "tool_choice": "none", "tools": [], "truncation": "disabled", "metadata": {}, "max_output_tokens": 2,
        "output": [{
            "id": "msg-0", "type": "message", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "".join(WORDS), "annotations": []}],
        }],
        "usage": {
            "input_tokens": PROMPT_TOKENS, "output_tokens": len(WORDS),
            "total_tokens": PROMPT_TOKENS + len(WORDS),
            "input_tokens_details": {"cached_tokens": CACHED_TOKENS, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }  # fmt: skip


async def test_a_stream_event_by_event() -> None:
    async with gateway(FakeBackend(finish=FinishReason.EOS)) as g:
        found = unnamed_events_of((await g.post(PATH, body(model="demo", stream=True))).text)
    part = {"type": "output_text", "text": "", "annotations": []}
    whole = {**part, "text": "".join(WORDS)}
    item = {"id": "msg-0", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    where = {"output_index": 0, "content_index": 0, "item_id": "msg-0"}
    expected = [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**where, "part": part}),
        *(("response.output_text.delta", {**where, "delta": word}) for word in WORDS),
        ("response.output_text.done", {**where, "text": whole["text"]}),
        ("response.content_part.done", {**where, "part": whole}),
        (
            "response.output_item.done",
            {"output_index": 0, "item": {**item, "status": "completed", "content": [whole]}},
        ),
        ("response.completed", None),
    ]
    assert [event["type"] for event in found] == [kind for kind, _ in expected]
    for number, (event, (kind, members)) in enumerate(zip(found, expected, strict=True)):
        if members is None:
            assert list(event) == ["type", "sequence_number", "response"]
        else:
            assert event == {"type": kind, "sequence_number": number, **members}
    first, last = found[0]["response"], found[-1]["response"]
    assert (first["status"], first["output"], "usage" in first) == ("in_progress", [], False)
    assert (last["status"], said(last)) == ("completed", whole["text"])


@module_loop
async def test_a_stream_grows_into_the_whole_response(client: httpx.AsyncClient) -> None:
    for seed in (1, 2, 3):
        whole = await answer(client, **VARIED, seed=seed)
        *_, last = await streamed(client, **VARIED, seed=seed)
        assert last["type"] == f"response.{whole['status']}"
        assert last["response"]["output"] == whole["output"]
        assert last["response"]["usage"] == whole["usage"]


@module_loop
async def test_several_answers_are_items_of_one_response(client: httpx.AsyncClient) -> None:
    """`n` of `best_of`; in the product's numbering, message after message."""
    found = await answer(client, **VARIED, n=2, best_of=2)
    assert [item["id"] for item in found["output"]] == ["msg-0", "msg-1"]
    first, second = ("".join(part["text"] for part in item["content"]) for item in found["output"])
    assert first != second


@module_loop
@pytest.mark.parametrize("fields", [{"logprobs": True}, {"logprobs": True, "top_logprobs": 2}])
async def test_logprobs_and_top_logprobs_are_the_same_streamed_and_whole(
    client: httpx.AsyncClient, fields: dict[str, Any]
) -> None:
    options = {**fields, "temperature": 0, "max_output_tokens": 12}
    (message,) = (await answer(client, **options))["output"]
    (part,) = message["content"]
    assert "".join(each["token"] for each in part["logprobs"]) == part["text"]
    assert {len(each["top_logprobs"]) for each in part["logprobs"]} == {fields.get("top_logprobs", 0)}
    deltas = [e for e in await streamed(client, **options) if e["type"] == "response.output_text.delta"]
    told = [token["token"] for each in deltas for token in each["logprobs"]]
    assert told == [each["token"] for each in part["logprobs"]]


@module_loop
@pytest.mark.own_server
@pytest.mark.parametrize("name", ["response_format", "text"])
async def test_a_format_binds_the_text(client: httpx.AsyncClient, name: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}},
              "required": ["n"], "additionalProperties": False}  # fmt: skip
    form = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}},
    }[name]
    found = await answer(client, **{name: form}, max_output_tokens=60, temperature=0)
    assert json.loads(said(found))["n"] in (3, 4, 5)


@module_loop
@pytest.mark.own_server
async def test_a_forced_call_is_an_item(client: httpx.AsyncClient) -> None:
    parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    options = {"tools": [tool], "tool_choice": "required", "temperature": 0, "max_output_tokens": 80,
               "parallel_tool_calls": False}  # fmt: skip
    (call,) = (await answer(client, **options))["output"]
    assert (call["type"], call["id"]) == ("function_call", call["call_id"])
    assert (call["name"], json.loads(call["arguments"])) == ("f", {"city": "Oslo"})
    found = await streamed(client, **options)
    assert list(dict.fromkeys(event["type"] for event in found)) == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    pieces = [event for event in found if "function_call_arguments" in event["type"]]
    assert {event["call_id"] == event["item_id"] for event in pieces} == {True}
    assert pieces[-1]["arguments"] == "".join(event["delta"] for event in pieces[:-1])


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        (FinishReason.EOS, "completed", None),
        (FinishReason.ABORT, "completed", None),
        (FinishReason.LENGTH, "incomplete", "max_tokens"),
        (FinishReason.CONTEXT, "incomplete", "max_tokens"),
        (FinishReason.FILTERED, "incomplete", "content_filter"),
    ],
)
async def test_the_words_for_an_end(
    finish: FinishReason, status: str, reason: str | None, stream: bool
) -> None:
    async with gateway(FakeBackend(finish=finish)) as g:
        found = await g.post(PATH, body(model="demo", stream=stream))
    response = unnamed_events_of(found.text)[-1]["response"] if stream else found.json()
    assert response["status"] == response["output"][0]["status"] == status
    assert response.get("incomplete_details") == (reason and {"reason": reason})
    assert ("completed_at" in response) == (status == "completed")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (GenerationFailed("the engine failed"), "server_error"),
        (QuotaExceeded("the limit of tokens is reached", retry_after_s=1.0), "rate_limit_exceeded"),
    ],
)
async def test_a_failure_after_the_first_byte_is_a_failed_response(failure: Exception, code: str) -> None:
    async with gateway(FakeBackend(fail_after=2, failure=failure)) as g:
        found = await g.post(PATH, body(model="demo", stream=True))
        assert found.status_code == 200
        last = unnamed_events_of(found.text)[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"] == {"code": code, "message": str(failure)}
        assert said(last["response"]) == "".join(WORDS[:2])
        await g.check()
