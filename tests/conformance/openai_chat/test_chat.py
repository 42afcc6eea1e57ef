"""POST /v1/chat/completions of OpenAI: the rules of both routes, and those of chat alone."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.conformance import conftest
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.openai_bounds import VARIED
from tests.conformance.openai_errors import error_of
from tests.conformance.openai_rules import Route, SharedRules, text_of
from tests.support.fakes_backend import CACHED_TOKENS, PROMPT_TOKENS, WORDS, FakeBackend
from tests.support.gateway import CHAT, chat_body, events, gateway

module_loop = pytest.mark.asyncio(loop_scope="module")

ROUTE = Route(CHAT, {"messages": [{"role": "user", "content": "Tell me!"}]})

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "x"}

BOUNDS: Bounds = {
    "max_tokens": ([1, 3.0, pytest.param(None, marks=pytest.mark.own_server)], []),
    "tools": ([[], [TOOL], None], [5, [5], [{"type": "function"}], [TOOL, TOOL]]),
    "tool_choice": (["auto", "none", None], ["required", "any", 5, {"type": "function"}]),
    "functions": ([[], [FUNCTION], None], [5, [5], [FUNCTION, FUNCTION]]),
    "function_call": (["auto", "none", None], ["required", 5, {"name": "f"}]),
    "reasoning_effort": (["none", "low", "max", None], ["much", "", 5]),
    "documents": ([[], None], ["x", {}, [5], [{"text": 5}], [{}] * 1025]),
    "chat_template_kwargs": ([{}, {"enable_thinking": False}, None], [5, {"": 1}]),
    "add_generation_prompt": ([True, False, None], []),
    "continue_final_message": ([False, None], []),
    "messages": ([], [None, [], "x", {}, 5]),
}  # fmt: skip

TOGETHER: dict[str, tuple[dict[str, Any], str | None]] = {
    "max_completion_tokens": ({"max_tokens": None, "max_completion_tokens": 1}, None),
    "max_completion_tokens=0": (
        {"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens",
    ),
    "max_completion_tokens-equal": ({"max_completion_tokens": 2}, None),
    "max_completion_tokens-differs": ({"max_completion_tokens": 3}, "max_tokens"),
    "top_logprobs=0": ({"logprobs": True, "top_logprobs": 0}, None),
    "top_logprobs=20": ({"logprobs": True, "top_logprobs": 20}, None),
    "top_logprobs=21": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "top_logprobs-without-logprobs": ({"top_logprobs": 1}, "top_logprobs"),
    "tool_choice-names-a-tool": ({"tools": [TOOL], "tool_choice": NAMED}, None),
    "tool_choice-names-no-tool": ({"tool_choice": NAMED}, "tool_choice"),
    "continue_final_message": (
        {"messages": [USER, {"role": "assistant", "content": "The"}], "continue_final_message": True}, None,
    ),
    "continue_final_message-beside-add_generation_prompt": (
        {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message",
    ),
    "functions-beside-tools": ({"tools": [TOOL], "functions": [FUNCTION]}, "functions"),
    "tool_choice-beside-functions": ({"functions": [FUNCTION], "tool_choice": "auto"}, "tool_choice"),
}  # fmt: skip

SOUND = {
    "empty-content": [{"role": "user", "content": ""}],
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "no-alternation": [USER, USER],
    "tool": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
             {"role": "tool", "tool_call_id": "c1", "content": "5"}],
    "function": [USER, {"role": "assistant", "content": None,
                        "function_call": {"name": "f", "arguments": "{}"}},
                 {"role": "function", "name": "f", "content": "5"}],
    "unknown-members": [{**USER, "cache_control": {"x": 1}, "refusal": None}],
}  # fmt: skip
UNSOUND = {
    "no-object": [5],
    "role-missing": [{"content": "x"}],
    "role-unknown": [{"role": "critic", "content": "x"}],
    "content-missing": [{"role": "user"}],
    "content-null": [{"role": "user", "content": None}],
    "content-null-of-assistant": [USER, {"role": "assistant", "content": None}],
    "content-a-number": [{"role": "user", "content": 5}],
    "image": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
    "tool-without-id": [{"role": "tool", "content": "5"}],
}


class TestShared(SharedRules):
    """The rules of both routes."""

    route = ROUTE


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    await ROUTE.accepts(client, field, value)


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    await ROUTE.refuses(client, field, value)


@module_loop
@pytest.mark.parametrize(("fields", "complaint"), TOGETHER.values(), ids=TOGETHER.keys())
async def test_fields_beside_each_other(
    client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None
) -> None:
    await ROUTE.judges(client, fields, complaint)


@module_loop
@pytest.mark.parametrize("messages", SOUND.values(), ids=SOUND.keys())
async def test_messages_that_are_accepted(client: httpx.AsyncClient, messages: Any) -> None:
    assert len(await ROUTE.texts(client, messages=messages)) == 1


@module_loop
@pytest.mark.parametrize("messages", UNSOUND.values(), ids=UNSOUND.keys())
async def test_messages_that_are_refused(client: httpx.AsyncClient, messages: Any) -> None:
    found = await ROUTE.ask(client, messages=messages)
    assert found.status_code == 400
    assert str(error_of(found)["param"]).startswith("messages.")


@module_loop
@pytest.mark.own_server
async def test_without_max_tokens_an_answer_goes_on_to_its_end(client: httpx.AsyncClient) -> None:
    window = (await client.get(f"/v1/models/{conftest.MODEL}")).json()["max_model_len"]
    found = await ROUTE.answer(client, max_tokens=None, ignore_eos=True)
    assert found["usage"]["total_tokens"] == window
    assert found["choices"][0]["finish_reason"] == "length"


async def test_a_stream_byte_by_byte() -> None:
    async with gateway(FakeBackend(words=("Bl", "", "ü"))) as g:
        found = await g.post(CHAT, chat_body(stream=True))
    assert found.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert found.headers["cache-control"] == "no-cache"
    assert found.headers["x-accel-buffering"] == "no"
    head = re.match(
        r'data: \{"id":"chatcmpl-[0-9a-f]{32}","object":"chat.completion.chunk","created":\d+,"model":"demo",'
        r'"system_fingerprint":"fp_[0-9a-f]{10}","choices":\[\{"index":0,',
        found.text,
    )
    assert head is not None, found.text
    deltas = [
        ('{"role":"assistant","content":""}', "null"),
        ('{"content":"Bl"}', "null"),
        ('{"content":"ü"}', "null"),
        ("{}", '"length"'),
    ]
    chunks = [
        f'{head[0]}"delta":{delta},"logprobs":null,"finish_reason":{end}}}]}}\n\n' for delta, end in deltas
    ]
    assert found.content == ("".join(chunks) + "data: [DONE]\n\n").encode()


STRING = rb'"(?:[^"\\\x00-\x1f]|\\.)*"'


@module_loop
@pytest.mark.parametrize("usage", [False, True], ids=["plain", "include_usage"])
async def test_a_stream_keeps_to_the_grammar(client: httpx.AsyncClient, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    found = await ROUTE.ask(client, max_tokens=12, stream=True, **options)
    model = re.escape(conftest.MODEL).encode()
    head = (
        rb'data: \{"id":"chatcmpl-[0-9a-f]+","object":"chat\.completion\.chunk","created":\d+,"model":"'
        + model + rb'","system_fingerprint":"fp_[0-9a-f]+","choices":\['
    )  # fmt: skip
    null = rb',"usage":null' if usage else b""
    chunk = head + rb'\{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b\}\]' + null + rb"\}\n\n"
    first = chunk % (rb'\{"role":"assistant","content":""\}', b"null")
    text = chunk % (rb'\{"content":' + STRING + rb"\}", b"null")
    last = chunk % (rb"\{\}", b'"(?:stop|length)"')
    total = head + rb'\],"usage":\{"prompt_tokens":\d+,[^\n]*\}\}\n\n' if usage else b""
    whole = first + b"(?:" + text + b")*" + last + total + rb"data: \[DONE\]\n\n"
    assert re.fullmatch(whole, found.content), found.text


async def test_a_whole_answer_has_these_keys_in_this_order() -> None:
    async with gateway() as g:
        found = await g.post(CHAT, chat_body())
    body = found.json()
    assert list(body) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert list(choice) == ["index", "message", "logprobs", "finish_reason"]
    assert choice["message"] == {"role": "assistant", "content": "".join(WORDS), "refusal": None}
    assert body["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": len(WORDS),
        "total_tokens": PROMPT_TOKENS + len(WORDS),
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }
    assert "Grüße".encode() in found.content  # not escaped


@module_loop
async def test_logprobs_are_the_same_streamed_and_whole(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "logprobs": True, "top_logprobs": 2}
    (choice,) = (await ROUTE.answer(client, **options))["choices"]
    entries = choice["logprobs"]["content"]
    assert all(list(entry) == ["token", "logprob", "bytes", "top_logprobs"] for entry in entries)
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    streamed: list[Any] = []
    for event in await ROUTE.streamed(client, **options):
        found = event["choices"][0]["logprobs"]
        streamed += found["content"] if found else []
    assert streamed == entries


@module_loop
async def test_return_tokens_as_token_ids_names_tokens_by_id(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    named = await ROUTE.answer(client, **options, return_tokens_as_token_ids=True)
    (choice,) = named["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{each}" for each in choice["token_ids"]]
    assert all(top["token"].startswith("token_id:") for entry in entries for top in entry["top_logprobs"])
    (plain,) = (await ROUTE.answer(client, **options))["choices"]
    assert [entry["bytes"] for entry in plain["logprobs"]["content"]] == [e["bytes"] for e in entries]


@module_loop
@pytest.mark.own_server
async def test_masks_that_exclude_every_token_are_an_error_of_their_fields(client: httpx.AsyncClient) -> None:
    found = await ROUTE.ask(client, allowed_token_ids=[300], no_repeat_ngram_size=1)
    assert found.status_code == 400  # no other try would do better, and clients repeat what is a 500
    assert error_of(found)["param"] == "allowed_token_ids"
    assert "no_repeat_ngram" in error_of(found)["message"]


PATTERN = '[+-]"[a-c]{2}"\\n'
LARK = r"""
start: sign WORD LF
sign: "+" | "-"
WORD: "\"" /[a-c]/~2 "\""
LF: /\n/
"""


def custom(syntax: str, definition: str) -> dict[str, Any]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "p", "format": form}}


CUSTOM = custom("regex", PATTERN)


@module_loop
@pytest.mark.own_server
@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "custom", "custom": {"name": "p"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CUSTOM]}},
    ],
    ids=["required", "named", "among"],
)
@pytest.mark.parametrize("tool", [CUSTOM, custom("lark", LARK)], ids=["regex", "lark"])
async def test_a_forced_call_of_a_custom_tool_is_a_text_of_its_form(
    client: httpx.AsyncClient, choice: Any, tool: dict[str, Any]
) -> None:
    """Whole, and in a stream."""
    fields = {"tools": [tool], "tool_choice": choice, "seed": 1, "max_tokens": 60}
    found = await ROUTE.ask(client, **fields)
    assert "x-ignored-fields" not in found.headers
    (call,) = found.json()["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "p")
    assert re.fullmatch(PATTERN, call["custom"]["input"])
    streamed = events((await ROUTE.ask(client, stream=True, **fields)).text)
    pieces = [piece for event in streamed for piece in event["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(piece["custom"]["input"] for piece in pieces) == call["custom"]["input"]


@module_loop
@pytest.mark.own_server
async def test_only_requests_with_the_same_salt_share_a_prefix(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "The sea is wide. " * 20}]
    cached = []
    for salt in ("a", "a", "b", None, "b"):
        found = await ROUTE.answer(client, messages=messages, cache_salt=salt)
        cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, True, False, False, True]


@module_loop
@pytest.mark.own_server
async def test_documents_that_the_template_does_not_show_are_an_error(client: httpx.AsyncClient) -> None:
    found = await ROUTE.ask(client, documents=[{"title": "a", "text": "b"}])
    assert found.status_code == 400
    assert error_of(found)["param"] == "documents"


@module_loop
@pytest.mark.own_server
async def test_a_form_that_is_no_regular_expression_is_an_error_of_the_tools(
    client: httpx.AsyncClient,
) -> None:
    found = await ROUTE.ask(client, tools=[custom("regex", "(a")], tool_choice="required")
    assert found.status_code == 400
    assert error_of(found)["param"] == "tools.0.custom.parameters"


@module_loop
@pytest.mark.own_server
@pytest.mark.parametrize(
    ("definition", "param", "told"),
    [
        (
            "start: /a/\n  | b",
            "tools.0.custom.format.grammar.definition",
            'tool "p": line 2: there is no rule b',
        ),
        (r'start: "\ud800"', "tools", 'tool "p": '),  # which only the parser finds
    ],
)
async def test_a_grammar_that_no_call_can_match_is_an_error_of_its_tool(
    client: httpx.AsyncClient, definition: str, param: str, told: str
) -> None:
    found = await ROUTE.ask(client, tools=[custom("lark", definition)], tool_choice="required")
    assert found.status_code == 400
    assert error_of(found)["param"] == param
    assert told in error_of(found)["message"]


@pytest.mark.parametrize("path", [CHAT, "/openai" + CHAT])
@pytest.mark.parametrize("setting", ["openai", "mindie"])
async def test_the_route_is_openais_by_setting_or_prefix(path: str, setting: str) -> None:
    async with gateway(v1_dialect=setting) as g:
        found = await g.post(path, chat_body())
    is_openai = setting == "openai" or path.startswith("/openai")
    assert ("system_fingerprint" in found.json()) is is_openai


async def test_choices_of_a_stream_open_with_their_role() -> None:
    async with gateway() as g:
        chunks = events((await g.post(CHAT, chat_body(n=2, stream=True))).text)
    for index in range(2):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert text_of(own[1]).startswith(WORDS[0])
