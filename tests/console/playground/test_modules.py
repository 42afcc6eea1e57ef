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
    ],
)
async def test_a_piece_of_every_protocol_is_read(modules: Modules, piece: Any, expected: Any) -> None:
    assert await modules.run("deltas.js", "return m.deltasOf(v)", piece) == [DELTA | expected]


async def test_usage_is_read_where_it_is_told(modules: Modules) -> None:
    assert await modules.run("deltas.js", "return m.usageOf(v)", OPENAI_CHUNK) == {
        "prompt": 3,
        "completion": 4,
        "cached": 2,
    }
    assert await modules.run("deltas.js", "return m.usageOf(v)", {"usage": None}) is None
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
            [{"type": "function", "function": {"name": "f"}}],
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
    script = "return m.requestFor({dialect: 'd', ...v.protocol}, v.asked)"
    found = await modules.run("request.js", script, {"protocol": protocol, "asked": asked})
    assert found == {"path": path, "dialect": "d", "entity": "e", "body": body}


async def test_figures_of_a_stream_and_of_a_whole_answer(modules: Modules) -> None:
    script = """
        let now = 0;
        const watch = new m.Stopwatch(() => now);
        for (const at of [100, 200, 300]) { now = at; watch.note(1); }
        now = 350;
        const usage = { prompt: 1200, completion: 11, cached: 1000 };
        return [watch.figures(usage, true), watch.figures(null, true), watch.figures(usage, false)]
          .map((each) => [each.first, each.pace, each.tokens, m.described(each)]);
    """
    told, counted, whole = await modules.run("figures.js", script)
    assert told[:3] == [100, 50, 11]
    assert told[3] == [
        ["First token", "100 ms"],
        ["Pace", "50.0 tokens/s"],
        ["Answer", "11 tokens"],
        ["Prompt", "1,200 tokens, 1,000 from the cache"],
        ["Time", "350 ms"],
    ]
    assert counted[:3] == [100, 10, 3]
    assert ["Answer", "about 3 tokens"] in counted[3]
    assert whole[:2] == [None, None]
    unknown = "return m.described(new m.Stopwatch().figures(null, false)).map(([name]) => name)"
    assert await modules.run("figures.js", unknown) == ["Time"]


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
