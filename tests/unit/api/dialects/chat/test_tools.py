"""Tools in the chat dialect: what a body may say of them, and calls and thoughts in answers."""

import json

import pytest
from openai.types.chat import ChatCompletion

from serve_app.api.protocol.dialect import Choice
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.limits import MAX_GRAMMAR_CHARS, MAX_TOOL_SCHEMA_BYTES, MAX_TOOLS
from serve_app.types import FinishReason, TokenDelta, ToolCallDelta, ToolChoice, ToolMode, Usage
from tests.support.fakes_backend import logprob_of, model_info
from tests.unit.api.dialects.openai.asks import parse_chat as parse
from tests.unit.api.dialects.openai.asks import refused, request

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name="f", **fields):
    return {"type": "function", "function": {"name": name, **fields}}


# --- bodies ----------------------------------------------------------------------------


def test_tools_pass_with_the_fields_of_the_protocol_alone():
    given = tool(description="Does.", parameters=SCHEMA, strict=True, cache=1) | {"x": 1}
    found = request(tools=[given, tool("g", strict=False, parameters=None, description=None)])
    assert found.prompt.tools == (
        tool(description="Does.", parameters=SCHEMA, strict=True),
        tool("g", parameters={"type": "object", "properties": {}}),
    )
    assert found.tool_choice == ToolChoice()
    assert parse(tools=[given]).ignored == ()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": "auto"}, ToolChoice()),
        ({"tool_choice": "none"}, ToolChoice(mode=ToolMode.NONE)),
        ({"tool_choice": "required"}, ToolChoice(mode=ToolMode.REQUIRED)),
        ({"parallel_tool_calls": False}, ToolChoice(parallel=False)),
        ({"parallel_tool_calls": True}, ToolChoice()),
        (
            {"tool_choice": {"type": "function", "function": {"name": "g"}}},
            ToolChoice(mode=ToolMode.NAMED, name="g", parallel=False),
        ),
    ],
)
def test_choices(fields, expected):
    assert request(tools=[tool(), tool("g")], **fields).tool_choice == expected


def test_functions_are_tools_of_which_one_is_called():
    old = {"name": "f", "parameters": SCHEMA}
    call = parse(functions=[old], function_call={"name": "f"})
    assert call.requests[0].prompt.tools == (tool(parameters=SCHEMA),)
    assert call.requests[0].tool_choice == ToolChoice(mode=ToolMode.NAMED, name="f", parallel=False)
    assert request(functions=[old]).tool_choice == ToolChoice(parallel=False)
    assert request(functions=[old], function_call="none").tool_choice.mode is ToolMode.NONE
    assert (call.names["tools"], call.names["tool_choice"]) == ("functions", "function_call")


@pytest.mark.parametrize(
    "empty", [{"tools": []}, {"tools": None}, {"functions": []}, {"tool_choice": "auto"}]
)
def test_no_tools_are_no_tools(empty):
    assert request(**empty).prompt.tools == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [tool(f"f{i}") for i in range(MAX_TOOLS + 1)]}, "tools"),
        ({"tools": [1]}, "tools.0"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [tool("")]}, "tools.0.function.name"),
        ({"tools": [tool("a b")]}, "tools.0.function.name"),
        ({"tools": [tool("f\n")]}, "tools.0.function.name"),
        ({"tools": [tool("f" * 65)]}, "tools.0.function.name"),
        ({"tools": [tool(), tool()]}, "tools.1.function.name"),
        ({"tools": [tool(description=1)]}, "tools.0.function.description"),
        ({"tools": [tool(strict="yes")]}, "tools.0.function.strict"),
        ({"tools": [tool(parameters=[])]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"x": "y" * MAX_TOOL_SCHEMA_BYTES})]}, "tools.0.function.parameters"),
        (
            {"tools": [tool(parameters={"items": [{"$ref": "http://a/b"}]})]},
            "tools.0.function.parameters",
        ),
        ({"tools": [tool(parameters={"$dynamicRef": "file:///etc"})]}, "tools.0.function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [tool()], "functions": [{"name": "f"}]}, "functions"),
        ({"tools": [tool()], "function_call": "auto"}, "function_call"),
        ({"functions": [{"name": "f"}], "tool_choice": "none"}, "tool_choice"),
        ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
        ({"functions": [{"name": "!"}]}, "functions.0.name"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_bad_tools_name_their_place(fields, param):
    error = refused(**fields)
    assert error.param == param
    assert error.message.startswith(param)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [tool()], "tool_choice": {"type": "web_search"}},
    ],
)
def test_other_kinds_are_unsupported(fields):
    assert isinstance(refused(**fields), UnsupportedField)


def lark(definition="start: /a+/"):
    return {"type": "grammar", "grammar": {"syntax": "lark", "definition": definition}}


REGEX = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+|b"}}


def custom(name="p", **fields):
    return {"type": "custom", "custom": {"name": name, **fields}}


def test_a_custom_tool_is_a_function_of_a_text_to_the_model():
    tools = [custom(description="Patches.", format={"type": "text"}), custom("q", format=REGEX)]
    call = parse(tools=[*tools, custom("r", format=lark())])
    one, other, third = (each["function"] for each in call.requests[0].prompt.tools)
    text = {"type": "object", "required": ["input"], "additionalProperties": False}
    assert one == {
        "name": "p",
        "description": "Patches.",
        "parameters": {**text, "properties": {"input": {"type": "string"}}},
    }
    assert other == {
        "name": "q",
        "parameters": {**text, "properties": {"input": {"type": "string", "pattern": "^(?:a+|b)$"}}},
    }
    assert third == {
        "name": "r",
        "parameters": {**text, "properties": {"input": {"type": "string"}}},
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"},
    }


@pytest.mark.parametrize(
    ("choice", "ignored"),
    [
        (None, ("tools.0.custom.format", "tools.1.custom.format")),
        ("none", ("tools.0.custom.format", "tools.1.custom.format")),
        ("required", ()),
        ({"type": "custom", "custom": {"name": "q"}}, ()),
    ],
)
def test_a_format_that_calls_need_not_match_is_listed(choice, ignored):
    call = parse(tools=[custom(format=lark()), custom("q", format=REGEX)], tool_choice=choice)
    assert call.ignored == ignored


def test_a_grammar_that_forced_calls_cannot_match_names_its_place_and_line():
    tools = [tool(), custom("q", format=lark('start: "a"\n  | [x')), custom()]
    for choice in ("required", {"type": "custom", "custom": {"name": "q"}}):
        error = refused(tools=tools, tool_choice=choice)
        assert error.param == "tools.1.custom.format.grammar.definition"
        assert 'tool "q": line 2: there is no rule x' in error.message
    for choice in ("auto", {"type": "custom", "custom": {"name": "p"}}):
        parse(tools=tools, tool_choice=choice)


def test_the_grammars_of_all_tools_are_bounded_together():
    half = lark("start: /a/ //" + "x" * (MAX_GRAMMAR_CHARS // 2))
    parse(tools=[custom(format=half), custom("q")])
    error = refused(tools=[custom(format=half), custom("q", format=half)])
    assert error.param == "tools"
    assert "grammars may have 131072 characters together" in error.message


def test_a_function_has_no_format_of_its_client():
    given = tool(format={"type": "grammar", "syntax": "lark", "definition": "start: /a/"})
    assert "format" not in request(tools=[given]).prompt.tools[0]["function"]


@pytest.mark.parametrize(
    ("among", "left", "mode"),
    [
        ({"mode": "auto", "tools": [tool("f")]}, ["f"], ToolMode.AUTO),
        ({"mode": "required", "tools": [custom(), tool("g")]}, ["g", "p"], ToolMode.REQUIRED),
    ],
)
def test_a_choice_among_some_of_the_tools(among, left, mode):
    found = request(
        tools=[tool(), tool("g"), custom()],
        tool_choice={"type": "allowed_tools", "allowed_tools": among},
    )
    assert [each["function"]["name"] for each in found.prompt.tools] == left
    assert found.tool_choice == ToolChoice(mode=mode)


AMONG = "tool_choice.allowed_tools"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools.0.custom"),
        ({"tools": [custom("a b")]}, "tools.0.custom.name"),
        ({"tools": [custom("f"), tool("f")]}, "tools.1.function.name"),
        ({"tools": [custom(description=1)]}, "tools.0.custom.description"),
        ({"tools": [custom(format=1)]}, "tools.0.custom.format.type"),
        ({"tools": [custom(format={"type": "xml"})]}, "tools.0.custom.format.type"),
        ({"tools": [custom(format={"type": "grammar"})]}, "tools.0.custom.format.syntax"),
        (
            {"tools": [custom(format={"type": "grammar", "grammar": {"syntax": "gbnf"}})]},
            "tools.0.custom.format.grammar.syntax",
        ),
        (
            {"tools": [custom(format={"type": "grammar", "grammar": {"syntax": "regex", "definition": ""}})]},
            "tools.0.custom.format.grammar.definition",
        ),
        ({"tools": [custom()], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [custom()], "tool_choice": {"type": "custom", "custom": {"name": "q"}}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools"}}, AMONG),
        ({"tools": [tool()], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, f"{AMONG}.mode"),
        (
            {
                "tools": [tool()],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [tool("g")]},
                },
            },
            f"{AMONG}.tools",
        ),
    ],
)
def test_bad_custom_tools_name_their_place(fields, param):
    assert refused(**fields).param == param


def test_earlier_calls_of_custom_tools_are_read():
    called = {"id": "c1", "type": "custom", "custom": {"name": "p", "input": "+a"}}
    found = request(
        messages=[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [called]}]
    )
    assert found.prompt.messages is not None
    assert found.prompt.messages[1]["tool_calls"] == [
        {"type": "function", "function": {"name": "p", "arguments": {"input": "+a"}}, "id": "c1"}
    ]
    for wrong, param in (
        ({**called, "custom": 1}, "messages.1.tool_calls.0.custom"),
        ({**called, "custom": {"name": "p"}}, "messages.1.tool_calls.0.custom.input"),
        ({**called, "type": "x"}, "messages.1.tool_calls.0"),
    ):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [wrong]}]
        assert refused(messages=messages).param == param


def test_a_schema_may_refer_to_itself_and_have_a_property_of_any_name():
    schema = {
        "$defs": {"x": {}},
        "properties": {"a": {"$ref": "#/$defs/x"}, "$ref": {"type": "string"}},
    }
    assert request(tools=[tool(parameters=schema)]).prompt.tools[0]["function"]["parameters"] == schema


def test_messages_of_functions_become_those_of_tools():
    found = request(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
            {"role": "function", "name": "f", "content": "2"},
        ]
    ).prompt.messages
    assert found is not None
    assert found[1:] == (
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}, "id": "function_f"},
        ]},
        {"role": "tool", "content": "2", "name": "f", "tool_call_id": "function_f"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "content": "x"}, "messages.1.name"),
        ({"role": "function", "content": 1, "name": "f"}, "messages.1.content"),
        ({"role": "assistant", "function_call": {}}, "messages.1.function_call.arguments"),
        ({"role": "assistant", "function_call": "f"}, "messages.1.function_call"),
    ],
)
def test_malformed_messages_of_functions_name_their_place(message, param):
    assert refused(messages=[{"role": "user", "content": "x"}, message]).param == param


# --- answers ---------------------------------------------------------------------------

DELTAS = [
    TokenDelta(request_id="abc", index=0, reasoning="Hm"),
    TokenDelta(request_id="abc", index=0, reasoning=".", text="Well"),
    TokenDelta(
        request_id="abc",
        index=0,
        tool_calls=(ToolCallDelta(index=0, id="call_1", name="f"), ToolCallDelta(index=0, arguments='{"a"')),
    ),
    TokenDelta(request_id="abc", index=0, tool_calls=(ToolCallDelta(index=0, arguments=":1}"),)),
    TokenDelta(
        request_id="abc",
        index=0,
        tool_calls=(ToolCallDelta(index=1, id="call_2", name="g"), ToolCallDelta(index=1, arguments="{}")),
        finish=FinishReason.TOOL_CALLS,
    ),
]


def streamed(deltas, **fields):
    """(delta, logprobs, finish_reason) of every chunk."""
    writer = parse(stream=True, **fields).renderer("abc", model_info())
    written = b"".join(writer.event(0, delta) for delta in deltas)
    chunks = [json.loads(part.removeprefix(b"data: ")) for part in written.split(b"\n\n")[:-1]]
    choices = [chunk["choices"][0] for chunk in chunks]
    return [(choice["delta"], choice["logprobs"], choice["finish_reason"]) for choice in choices]


def whole(deltas, **fields):
    choice = Choice()
    for delta in deltas:
        choice.add(delta)
    body = json.loads(parse(**fields).renderer("abc", model_info()).whole([choice], Usage()))
    ChatCompletion.model_validate(body)
    return body["choices"][0]


def test_calls_are_streamed_as_openai_does():
    assert streamed(DELTAS, tools=[tool(), tool("g")]) == [
        ({"role": "assistant", "content": ""}, None, None),
        ({"reasoning_content": "Hm"}, None, None),
        ({"reasoning_content": "."}, None, None),
        ({"content": "Well"}, None, None),
        (
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "f", "arguments": ""},
                    }
                ]
            },
            None,
            None,
        ),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}, None, None),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}, None, None),
        (
            {
                "tool_calls": [
                    {
                        "index": 1,
                        "id": "call_2",
                        "type": "function",
                        "function": {"name": "g", "arguments": ""},
                    }
                ]
            },
            None,
            None,
        ),
        ({"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}, None, None),
        ({}, None, "tool_calls"),
    ]


def test_a_whole_answer_holds_them():
    found = whole(DELTAS)
    assert found["finish_reason"] == "tool_calls"
    assert found["message"] == {
        "role": "assistant",
        "content": "Well",
        "refusal": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert whole(DELTAS[2:])["message"]["content"] is None
    silent = whole([TokenDelta(request_id="abc", index=0, finish=FinishReason.EOS)])
    assert silent["message"] == {"role": "assistant", "content": "", "refusal": None}


def test_thoughts_may_be_left_out():
    told = streamed(DELTAS, tools=[tool(), tool("g")])
    left_out = streamed(DELTAS, tools=[tool(), tool("g")], include_reasoning=False)
    assert left_out == [chunk for chunk in told if "reasoning_content" not in chunk[0]] != told
    assert "reasoning_content" not in whole(DELTAS, include_reasoning=False)["message"]
    assert whole(DELTAS, include_reasoning=True) == whole(DELTAS)


PATCH = [
    TokenDelta(
        request_id="abc",
        index=0,
        tool_calls=(ToolCallDelta(index=0, id="c0", name="p", arguments='{"in'),),
    ),
    TokenDelta(request_id="abc", index=0, tool_calls=(ToolCallDelta(index=0, arguments='put": "+a\\n'),)),
    TokenDelta(
        request_id="abc",
        index=0,
        tool_calls=(
            ToolCallDelta(index=0, arguments='"}'),
            ToolCallDelta(index=1, id="c1", name="f", arguments="{}"),
            ToolCallDelta(index=2, id="c2", name="p", arguments='{"input": "b'),
        ),
    ),
    TokenDelta(request_id="abc", index=0, finish=FinishReason.LENGTH),
]


def test_the_text_of_a_custom_tool_is_sent_when_its_call_is_whole():
    """Of a call that was cut, what is there of it."""
    sent = streamed(PATCH, tools=[tool(), custom()])
    assert [(choice.get("tool_calls"), finish) for choice, _, finish in sent[1:]] == [
        ([{"index": 0, "id": "c0", "type": "custom", "custom": {"name": "p", "input": ""}}], None),
        ([{"index": 0, "custom": {"input": "+a\n"}}], None),
        (
            [{"index": 1, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            None,
        ),
        ([{"index": 2, "id": "c2", "type": "custom", "custom": {"name": "p", "input": ""}}], None),
        ([{"index": 2, "custom": {"input": "b"}}], None),
        (None, "length"),
    ]
    assert whole(PATCH, tools=[tool(), custom()])["message"]["tool_calls"] == [
        {"id": "c0", "type": "custom", "custom": {"name": "p", "input": "+a\n"}},
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "c2", "type": "custom", "custom": {"name": "p", "input": "b"}},
    ]


def test_functions_are_answered_in_their_own_form():
    fields = {"functions": [{"name": "f"}]}
    assert [choice for choice, _, _ in streamed(DELTAS[2:4], **fields)][1:] == [
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ":1}"}},
    ]
    finish = TokenDelta(request_id="abc", index=0, finish=FinishReason.TOOL_CALLS)
    assert streamed([finish], **fields)[-1] == ({}, None, "function_call")
    found = whole([*DELTAS[2:4], finish], **fields)
    assert found["finish_reason"] == "function_call"
    assert found["message"]["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert "tool_calls" not in found["message"]


def test_log_probabilities_of_a_step_are_sent_once():
    deltas = [
        TokenDelta(
            request_id="abc",
            index=0,
            reasoning="Hm",
            text="a",
            tool_calls=(ToolCallDelta(index=0, arguments="{"),),
            logprobs=(logprob_of("x", 1),),
        ),
        TokenDelta(request_id="abc", index=0, logprobs=(logprob_of("y", 1),)),
    ]
    found = streamed(deltas, logprobs=True)[1:]
    tokens = [logprobs and [t["token"] for t in logprobs["content"]] for _, logprobs, _ in found]
    assert tokens == [["x"], None, None, ["y"]]
    assert found[-1][0] == {"content": ""}


@pytest.mark.parametrize(("strict", "choice"), [(True, "auto"), (False, "required")])
def test_an_error_of_parameters_names_the_tool_and_the_place(strict, choice):
    email = {"type": "string", "pattern": r"\bx" if strict else "("}
    closed = {"required": ["email"], "additionalProperties": False}
    parameters = {"type": "object", "properties": {"email": email}, **closed}
    function = {"name": "send_mail", "parameters": parameters, "strict": strict}
    with pytest.raises(InvalidField) as caught:
        parse(tools=[{"type": "function", "function": function}], tool_choice=choice)
    assert caught.value.param == "tools.0.function.parameters"
    assert 'tool "send_mail": ' in caught.value.message
    assert "$.properties.email.pattern" in caught.value.message
