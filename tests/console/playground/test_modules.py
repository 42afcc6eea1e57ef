"""The Playground's modules by themselves: streams, deltas, options, requests, figures."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.console.playground.conftest import Modules

STREAM: Final = (
    ': hello\r\ndata: {"a":1}\r\n\r\nevent: error\ndata:two\ndata: lines\n\nid: 7\nretry: 5\n\n'
    "data: é😀\r\rdata\n\ndata: last is not whole\n"
)
EVENTS: Final = [
    {"event": "message", "data": '{"a":1}'},
    {"event": "error", "data": "two\nlines"},
    {"event": "message", "data": "é😀"},
    {"event": "message", "data": ""},
]


async def test_events_are_read_wherever_a_stream_is_cut(modules: Modules) -> None:
    every_cut = """
        const found = [];
        for (let size = 1; size <= v.length; size++) {
          const parser = new m.EventParser();
          const events = [];
          for (let at = 0; at < v.length; at += size) events.push(...parser.push(v.slice(at, at + size)));
          found.push(events);
        }
        return found;
    """
    for events in await modules.run("sse.js", every_cut, STREAM):
        assert events == EVENTS


async def test_bytes_of_one_character_may_come_apart(modules: Modules) -> None:
    by_bytes = """
        const bytes = new TextEncoder().encode(v);
        const body = new ReadableStream({
          start(to) { for (const byte of bytes) to.enqueue(new Uint8Array([byte])); to.close(); },
        });
        const events = [];
        for await (const event of m.eventsOf(body)) events.push(event);
        return events;
    """
    assert await modules.run("sse.js", by_bytes, STREAM) == EVENTS


OPENAI_CHUNK: Final = {
    "choices": [
        {
            "index": 1,
            "delta": {
                "content": "a",
                "reasoning_content": "r",
                "tool_calls": [{"index": 2, "id": "c1", "function": {"name": "f", "arguments": '{"x'}}],
            },
            "logprobs": {
                "content": [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1}]}]
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}},
}
TOOL_USE: Final = {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}
DELTA: Final = {
    "choice": 0,
    "text": "",
    "reasoning": "",
    "calls": [],
    "tokens": [],
    "finish": None,
}


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        pytest.param(
            OPENAI_CHUNK,
            {
                "choice": 1,
                "text": "a",
                "reasoning": "r",
                "finish": "stop",
                "calls": [{"index": 2, "id": "c1", "name": "f", "arguments": '{"x'}],
                "tokens": [{"text": "a", "logprob": -0.5, "alternatives": [{"text": "b", "logprob": -1}]}],
            },
            id="chat",
        ),
        pytest.param(
            {
                "choices": [
                    {
                        "index": 0,
                        "message": {
                            "content": None,
                            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"x": 1}}}],
                        },
                        "finish_reason": "tool_calls",
                    }
                ]
            },
            {"calls": [{"index": 0, "id": "c", "name": "f", "arguments": '{"x":1}'}], "finish": "tool_calls"},
            id="whole chat, arguments as an object",
        ),
        pytest.param(
            {
                "choices": [
                    {
                        "index": 0,
                        "text": "ab",
                        "finish_reason": None,
                        "logprobs": {
                            "tokens": ["a", "b"],
                            "token_logprobs": [None, -1],
                            "top_logprobs": [None, {"c": -2}],
                            "text_offset": [0, 1],
                        },
                    }
                ]
            },
            {
                "text": "ab",
                "tokens": [
                    {"text": "a", "logprob": None, "alternatives": []},
                    {"text": "b", "logprob": -1, "alternatives": [{"text": "c", "logprob": -2}]},
                ],
            },
            id="completion",
        ),
        pytest.param(
            {"model_name": "demo", "text_output": " x", "output_log_probs": -0.25},
            {"text": " x", "tokens": [{"text": " x", "logprob": -0.25, "alternatives": []}]},
            id="triton",
        ),
        pytest.param(
            {"id": "1", "text_output": "y", "details": {"finish_reason": "length"}},
            {"text": "y", "finish": "length"},
            id="mindie",
        ),
        pytest.param(
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {
                            "content": [
                                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
                                {"type": "text", "text": "a"},
                            ]
                        },
                    }
                ]
            },
            {"text": "a", "reasoning": "r"},
            id="databricks' chat with thoughts",
        ),
        pytest.param(
            {"type": "content_block_start", "index": 2, "content_block": {**TOOL_USE, "input": {}}},
            {"calls": [{"index": 2, "id": "t1", "name": "f", "arguments": ""}]},
            id="message, a call begins",
        ),
        pytest.param(
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": '{"x'},
            },
            {"calls": [{"index": 2, "id": "", "name": "", "arguments": '{"x'}]},
            id="message, a call goes on",
        ),
        pytest.param(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
            {"text": "a"},
            id="message, text",
        ),
        pytest.param(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "r"}},
            {"reasoning": "r"},
            id="message, thoughts",
        ),
        pytest.param(
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
            {"finish": "end_turn"},
            id="message, its end",
        ),
        pytest.param(
            {
                "type": "response.output_text.delta",
                "output_index": 1,
                "delta": "a",
                "logprobs": [{"token": "a", "logprob": -0.5, "top_logprobs": []}],
            },
            {"text": "a", "tokens": [{"text": "a", "logprob": -0.5, "alternatives": []}]},
            id="response, text",
        ),
        pytest.param(
            {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "r"},
            {"reasoning": "r"},
            id="response, thoughts",
        ),
        pytest.param(
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "r"},
            {"reasoning": "r"},
            id="response, thoughts as a summary",
        ),
        pytest.param(
            {
                "type": "response.output_item.added",
                "output_index": 2,
                "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
            },
            {"calls": [{"index": 2, "id": "c", "name": "f", "arguments": ""}]},
            id="response, a call begins",
        ),
        pytest.param(
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"x'},
            {"calls": [{"index": 2, "id": "", "name": "", "arguments": '{"x'}]},
            id="response, a call goes on",
        ),
        pytest.param(
            {
                "type": "response.incomplete",
                "response": {
                    "status": "incomplete",
                    "incomplete_details": {"reason": "max_output_tokens"},
                },
            },
            {"finish": "incomplete: max_output_tokens"},
            id="response, its end",
        ),
    ],
)
async def test_a_piece_of_every_protocol_is_read(modules: Modules, piece: Any, expected: Any) -> None:
    assert await modules.run("deltas.js", "return m.deltasOf(v)", piece) == [DELTA | expected]


async def test_a_whole_message_is_read(modules: Modules) -> None:
    blocks = [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "a"}, TOOL_USE]
    message = {"type": "message", "content": blocks, "stop_reason": "tool_use"}
    assert await modules.run("deltas.js", "return m.deltasOf(v)", message) == [
        DELTA | {"reasoning": "r"},
        DELTA | {"text": "a"},
        DELTA | {"calls": [{"index": 2, "id": "t1", "name": "f", "arguments": '{"x":1}'}]},
        DELTA | {"finish": "tool_use"},
    ]


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text, "logprobs": []}]}


async def test_a_whole_response_is_read(modules: Modules) -> None:
    """Further texts are further choices, as OpenVINO Model Server writes several answers."""
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    response = {
        "object": "response",
        "status": "completed",
        "error": None,
        "output": [thought, said("a"), call, thought, said("b")],
    }
    assert await modules.run("deltas.js", "return m.problemOf(v)", response) is None
    assert await modules.run("deltas.js", "return m.deltasOf(v)", response) == [
        DELTA | {"reasoning": "r"},
        DELTA | {"text": "a"},
        DELTA | {"calls": [{"index": 2, "id": "c", "name": "f", "arguments": "{}"}]},
        DELTA | {"choice": 1, "reasoning": "r"},
        DELTA | {"choice": 1, "text": "b"},
        DELTA | {"choice": 1, "finish": "completed"},
    ]


async def test_what_adds_nothing_is_no_delta(modules: Modules) -> None:
    quiet = [{"type": "ping"}, {"type": "message_stop"}, {"type": "response.created", "response": {}}]
    for piece in [*quiet, {"type": "message_start", "message": {"content": []}}]:
        assert await modules.run("deltas.js", "return m.deltasOf(v)", piece) == []


async def test_usage_is_read_where_it_is_told(modules: Modules) -> None:
    assert await modules.run("deltas.js", "return m.usageOf(v)", OPENAI_CHUNK) == {
        "prompt": 3,
        "completion": 4,
        "cached": 2,
    }
    assert await modules.run("deltas.js", "return m.usageOf(v)", {"usage": None}) is None
    spent = {"input_tokens": 1, "cache_read_input_tokens": 2, "output_tokens": 4}
    message = {"type": "message_delta", "delta": {}, "usage": spent}
    used = {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 4}
    response = {"type": "response.completed", "response": {"usage": used}}
    for piece in (message, response, {"object": "response", "usage": used}):
        assert await modules.run("deltas.js", "return m.usageOf(v)", piece) == {
            "prompt": 3,
            "completion": 4,
            "cached": 2,
        }
    begun = {"type": "response.created", "response": {"usage": None}}
    assert await modules.run("deltas.js", "return m.usageOf(v)", begun) is None
    mindie = {"text_output": "a", "details": {"generated_tokens": 4}}
    assert await modules.run("deltas.js", "return m.usageOf(v).completion", mindie) == 4
    triton = {"text_output": ["a", "b"], "sequence_length": [3, 2]}
    assert await modules.run("deltas.js", "return [m.usageOf(v), m.usageOf(v, true).completion]", triton) == [
        None,
        5,
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            {"error": {"message": "no", "type": "invalid_request_error", "param": "top_p"}},
            {"message": "no", "kind": "invalid_request_error", "field": "top_p"},
        ),
        (
            {"error_code": "BAD_REQUEST", "message": "no"},
            {"message": "no", "kind": "BAD_REQUEST", "field": ""},
        ),
        ({"error": "no", "error_type": "Validation"}, {"message": "no", "kind": "Validation", "field": ""}),
        ({"error": "no"}, {"message": "no", "kind": "", "field": ""}),
        ({"choices": []}, None),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
            {"message": "no", "kind": "overloaded_error", "field": ""},
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "no"}}},
            {"message": "no", "kind": "server_error", "field": ""},
        ),
    ],
)
async def test_errors_of_every_protocol_are_read(modules: Modules, body: Any, expected: Any) -> None:
    assert await modules.run("deltas.js", "return m.problemOf(v)", body) == expected


async def test_a_seed_of_64_bits_loses_no_digit(modules: Modules) -> None:
    script = "return m.toJson({seed: m.wholeNumber(v), n: [m.wholeNumber('7')], text: `bigint-1 \"x\"`})"
    text = await modules.run("json_text.js", script, "-9223372036854775808")
    assert json.loads(text) == {"seed": -9223372036854775808, "n": [7], "text": 'bigint-1 "x"'}


@pytest.mark.parametrize(
    ("attributes", "text", "expected"),
    [
        ({"kind": "number"}, "0.5", 0.5),
        ({"kind": "number"}, "", None),
        ({"kind": "number", "integer": "", "minimum": "-1", "maximum": "5"}, "-1", -1),
        ({"kind": "number", "integer": ""}, "1.5", "must be a whole number"),
        ({"kind": "number", "minimum": "0", "maximum": "2"}, "2.1", "must be a number from 0 to 2"),
        (
            {"kind": "number", "minimum": "0", "above": "", "maximum": "1"},
            "0",
            "must be a number above 0 and up to 1",
        ),
        ({"kind": "number"}, "one", "must be a number"),
        ({"kind": "number", "required": ""}, "", "is required"),
        ({"kind": "text"}, " ", " "),
        ({"kind": "lines"}, "a\n\nb c", ["a", "b c"]),
        ({"kind": "lines"}, '["\\n"]', ["\n"]),
        ({"kind": "numbers"}, "1, 2 3", [1, 2, 3]),
        ({"kind": "numbers"}, "1, x", "must be whole numbers with commas between them"),
        ({"kind": "json", "words": "auto none"}, "auto", "auto"),
        ({"kind": "json", "words": "auto none"}, '{"a": 1}', {"a": 1}),
        ({"kind": "tools"}, "{}", "must be a list of tools"),
        (
            {"kind": "tools"},
            '[{"type": "function"}]',
            'tool 1 must be {"type": "function", "function": {"name": ...}}',
        ),
        (
            {"kind": "tools"},
            '[{"type": "function", "function": {"name": "f"}}]',
            [{"name": "f"}],
        ),
        (
            {"kind": "tools"},
            '[{"type": "function", "name": "f", "strict": true}]',
            [{"name": "f", "strict": True}],
        ),
        (
            {"kind": "tools"},
            '[{"name": "f", "input_schema": {"a": 1}}]',
            [{"name": "f", "parameters": {"a": 1}}],
        ),
        ({"kind": "tools"}, "[]", None),
        ({"kind": "tool_choice"}, "any", {"word": "required"}),
        ({"kind": "tool_choice"}, "required", {"word": "required"}),
        ({"kind": "tool_choice"}, '"none"', {"word": "none"}),
        ({"kind": "tool_choice"}, '{"type": "auto"}', {"word": "auto"}),
        ({"kind": "tool_choice"}, '{"type": "tool", "name": "f"}', {"name": "f"}),
        ({"kind": "tool_choice"}, '{"type": "function", "name": "f"}', {"name": "f"}),
        ({"kind": "tool_choice"}, '{"type": "function", "function": {"name": "f"}}', {"name": "f"}),
        (
            {"kind": "tool_choice"},
            '{"type": "auto", "x": 1}',
            {"raw": {"type": "auto", "x": 1}, "shape": None},
        ),
    ],
)
async def test_a_control_is_read_and_checked(
    modules: Modules, attributes: dict[str, str], text: str, expected: Any
) -> None:
    script = """
        const control = document.createElement("textarea");
        Object.assign(control.dataset, v.attributes);
        control.value = v.text;
        try { return m.readControl(control) ?? null; } catch (error) { return error.message; }
    """
    assert await modules.run("options.js", script, {"attributes": attributes, "text": text}) == expected


async def test_wrong_json_is_said_at_its_place(modules: Modules) -> None:
    script = """
        const form = document.createElement("form");
        form.innerHTML = `<textarea id="a" data-kind="json" data-path="logit_bias">{"a" 1}</textarea>
          <p id="a-problem"></p>`;
        const { wrong } = m.readOptions(form);
        const message = form.querySelector("p").textContent;
        const told = [wrong.length, message, wrong[0].getAttribute("aria-invalid")];
        wrong[0].value = "{}";
        const { members } = m.readOptions(form);
        return [...told, members, form.querySelector("p").textContent, wrong[0].getAttribute("aria-invalid")];
    """
    count, message, invalid, members, after, valid = await modules.run("options.js", script)
    assert (count, invalid, members, after, valid) == (1, "true", [["logit_bias", {}]], "", "false")
    assert message.startswith("logit_bias: must be JSON:")
    assert "position" in message


@pytest.mark.parametrize(
    ("protocol", "stream", "path", "body"),
    [
        (
            {
                "shape": "chat",
                "path": "/v1/chat/completions",
                "streamPath": "/v1/chat/completions",
                "prompt": "messages",
                "namesModel": True,
                "streams": True,
                "usage": True,
            },
            True,
            "/v1/chat/completions",
            {
                "model": "a/b c",
                "messages": "P",
                "top_p": 1,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ),
        (
            {
                "path": "/v2/models/{model}/generate",
                "streamPath": "/v2/models/{model}/generate_stream",
                "prompt": "text_input",
                "namesModel": False,
                "streams": False,
                "usage": False,
            },
            True,
            "/v2/models/a/b%20c/generate_stream",
            {"text_input": "P", "top_p": 1},
        ),
        (
            {
                "path": "/v2/models/{model}/generate",
                "streamPath": "/v2/models/{model}/generate_stream",
                "prompt": "text_input",
                "namesModel": False,
                "streams": True,
                "usage": True,
            },
            False,
            "/v2/models/a/b%20c/generate",
            {"text_input": "P", "top_p": 1, "stream": False},
        ),
    ],
)
async def test_a_request_of_each_form(
    modules: Modules, protocol: dict[str, Any], stream: bool, path: str, body: Any
) -> None:
    asked = {"endpoint": "a/b c", "entity": "e", "prompt": "P", "members": [["top_p", 1]], "stream": stream}
    script = "return m.requestFor({dialect: 'd', shape: 'text', ...v.protocol}, {...v.asked, said: {}})"
    found = await modules.run("request.js", script, {"protocol": protocol, "asked": asked})
    assert found == {"path": path, "dialect": "d", "entity": "e", "body": body}


async def test_figures_of_a_stream_and_of_a_whole_answer(modules: Modules) -> None:
    script = """
        let now = 0;
        const watch = new m.Stopwatch(() => now);
        for (const at of [100, 200, 300]) { now = at; watch.note(1); }
        now = 350;
        const usage = { prompt: 1200, completion: 12, cached: 1000 };
        return [watch.figures(usage, true), watch.figures(null, true), watch.figures(usage, false)]
          .map((each) => [each.first, each.pace, each.tokens, m.described(each)]);
    """
    told, counted, whole = await modules.run("figures.js", script)
    assert told[:3] == [100, 40, 12]  # three pieces of four tokens; eight came after the first piece
    assert told[3] == [
        ["First token", "100 ms"],
        ["Pace", "40.0 tokens/s"],
        ["Answer", "12 tokens"],
        ["Prompt", "1,200 tokens, 1,000 from the cache"],
        ["Time", "350 ms"],
    ]
    assert counted[:3] == [100, 10, 3]
    assert ["Answer", "about 3 tokens"] in counted[3]
    assert whole[:2] == [None, None]
    unknown = "return m.described(new m.Stopwatch().figures(null, false)).map(([name]) => name)"
    assert await modules.run("figures.js", unknown) == ["Time"]


async def test_a_pace_is_measured_between_arrivals(modules: Modules) -> None:
    """Tokens that came with the first one took no time that anybody saw."""
    script = """
        let now = 0;
        const watch = new m.Stopwatch(() => now);
        for (const [at, pieces] of v) {
          now = at;
          watch.arrived();
          for (let piece = 0; piece < pieces; piece++) { now += 0.2; watch.note(1); }
        }
        const figures = watch.figures(null, true);
        return [figures.first, figures.pace, Object.fromEntries(m.described(figures)).Pace];
    """
    arrivals = [[100, 6], [200, 3], [300, 1]]
    assert await modules.run("figures.js", script, arrivals) == [100, 20, "20.0 tokens/s"]
    assert await modules.run("figures.js", script, [[50, 10]]) == [50, None, "too short to measure"]


async def test_a_call_of_a_tool_comes_in_pieces(modules: Modules) -> None:
    script = """
        const answer = new m.Answer();
        const delta = (calls) => ({ choice: 0, text: "", reasoning: "", tokens: [], finish: null, calls });
        answer.add(delta([{ index: 0, id: "c1", name: "f", arguments: "{\\"a" }]));
        answer.add(delta([{ index: 1, id: "c2", name: "g", arguments: "{}" }]));
        answer.add(delta([{ index: 0, id: "", name: "", arguments: "\\": 1}" }]));
        answer.choices[0].calls[1].result = "12 °C";
        return [answer.message(), answer.results()];
    """
    message, results = await modules.run("answer.js", script)
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "g", "arguments": "{}"},
    ]
    assert results == [{"role": "tool", "tool_call_id": "c2", "content": "12 °C"}]


CONVERSATION: Final = [
    {"role": "system", "content": "Be brief"},
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "12 °C"},
    {"role": "user", "content": "So?"},
]
SAID: Final[dict[str, Any]] = {
    "tools": [{"name": "f", "description": "F", "parameters": {"type": "object"}}, {"name": "g"}],
    "choice": {"name": "f"},
    "form": {"schema": {"type": "array"}, "strict": {"strict": True}},
}


async def test_a_conversation_in_every_shape(modules: Modules) -> None:
    script = "return m.SHAPES.map((shape) => m.written(shape, v.messages, v.said))"
    chat, messages, responses = await modules.run(
        "shapes.js", script, {"messages": CONVERSATION, "said": SAID}
    )
    schema = {"type": "array"}
    assert chat == {
        "messages": CONVERSATION,
        "tools": [{"type": "function", "function": tool} for tool in SAID["tools"]],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    }
    assert messages == {
        "system": "Be brief",
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "12 °C"},
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
        "tools": [
            {"name": "f", "description": "F", "input_schema": {"type": "object"}},
            {"name": "g", "input_schema": {"type": "object"}},
        ],
        "tool_choice": {"type": "tool", "name": "f"},
        "output_config.format": {"type": "json_schema", "schema": schema},
    }
    assert responses == {
        "instructions": "Be brief",
        "input": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "12 °C"},
            {"role": "user", "content": "So?"},
        ],
        "tools": [{"type": "function", **tool} for tool in SAID["tools"]],
        "tool_choice": {"type": "function", "name": "f"},
        "text.format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True},
    }


async def test_a_short_question_in_every_shape(modules: Modules) -> None:
    """Nothing is written that was not said; what only one shape has is in no other."""
    script = "return m.SHAPES.map((shape) => m.written(shape, v.messages, v.said))"
    asked = [{"role": "user", "content": "Hello!"}]
    odd = {"raw": {"type": "auto", "disable_parallel_tool_use": True}, "shape": "messages"}
    form = {"raw": {"type": "regex", "regex": "a"}, "shape": "chat"}
    said = {"choice": odd, "form": form}
    assert await modules.run("shapes.js", script, {"messages": asked, "said": said}) == [
        {"messages": asked, "response_format": form["raw"]},
        {"messages": asked, "tool_choice": odd["raw"]},
        {"input": "Hello!"},
    ]
    any_object = {"choice": {"word": "required"}, "form": {}}
    assert await modules.run("shapes.js", script, {"messages": asked, "said": any_object}) == [
        {"messages": asked, "tool_choice": "required", "response_format": {"type": "json_object"}},
        {
            "messages": asked,
            "tool_choice": {"type": "any"},
            "output_config.format": {"type": "json_schema", "schema": {"type": "object"}},
        },
        {"input": "Hello!", "tool_choice": "required", "text.format": {"type": "json_object"}},
    ]
