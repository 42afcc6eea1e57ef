"""The renderer of responses: what no demo model does, thoughts among it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.dialects.responses.body import Reading
from serve_app.api.dialects.responses.dialect import ResponseDialect
from serve_app.api.protocol.dialect import Call, Choice, Renderer
from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason, TokenDelta, ToolCallDelta, Usage
from tests.support.fakes_backend import logprob_of, model_info
from tests.support.response_events import events_of

USAGE = Usage(prompt_tokens=5, completion_tokens=9, reasoning_tokens=3)
LOGPROBS = {"include": ["message.output_text.logprobs"]}


def delta(**fields: Any) -> TokenDelta:
    return TokenDelta(request_id="r", index=0, **fields)


def calls(index: int, *pieces: str) -> list[TokenDelta]:
    head = ToolCallDelta(index=index, id=f"call_{index}", name=f"f{index}", arguments=pieces[0])
    rest = [ToolCallDelta(index=index, arguments=piece) for piece in pieces[1:]]
    return [delta(tool_calls=(each,)) for each in (head, *rest)]


DELTAS = [
    delta(reasoning="Hm", logprobs=(logprob_of("<t>", 0), logprob_of("Hm", 0))),
    delta(reasoning=" so.", logprobs=(logprob_of(" so.", 0),)),
    delta(logprobs=(logprob_of("</t>", 0),)),
    delta(text="I", logprobs=(logprob_of("I", 0),)),
    delta(logprobs=(logprob_of(" l", 0),)),  # of a character that is not whole yet
    delta(text=" look.", logprobs=(logprob_of("ook.", 0),)),
    *calls(0, "", '{"a"', ": 1}"),
    *calls(1, "{}"),
    delta(finish=FinishReason.TOOL_CALLS),
]


def parsed(body: dict[str, Any]) -> Call:
    call = ResponseDialect(render_error, Reading(keeps=False, notes_pictures=True)).parse(
        json.dumps(body).encode()
    )
    assert isinstance(call, Call)
    return call


def renderer(**fields: Any) -> Renderer:
    body = {"model": "demo", "input": "x", **fields}
    return parsed(body).renderer("r1", model_info())


def streamed(deltas: list[TokenDelta], **fields: Any) -> list[Any]:
    writes = renderer(stream=True, **fields)
    return events_of((b"".join(writes.event(0, each) for each in deltas) + writes.end(USAGE)).decode())


def whole(deltas: list[TokenDelta], **fields: Any) -> dict[str, Any]:
    choice = Choice()
    for each in deltas:
        choice.add(each)
    found: dict[str, Any] = json.loads(renderer(**fields).whole([choice], USAGE))
    return found


def test_thoughts_text_and_calls_are_items_in_their_order() -> None:
    events = streamed(DELTAS, **LOGPROBS)
    last = events[-1].response.model_dump(exclude_unset=True)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", *["function_call"] * 2]
    assert last["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm so."}]
    assert [item["arguments"] for item in last["output"][2:]] == ['{"a": 1}', "{}"]
    assert len({item["id"] for item in last["output"]}) == 4
    added = [each for each in events if each.type == "response.output_item.added"]
    done = [each for each in events if each.type == "response.output_item.done"]
    assert [each.output_index for each in added] == [each.output_index for each in done] == [0, 1, 2, 3]
    assert [each.item.model_dump(exclude_unset=True) for each in done] == last["output"]
    for number, each in enumerate(added):  # an item ends before the next one begins
        assert number == 0 or events.index(done[number - 1]) < events.index(each)


def test_a_whole_response_is_the_last_of_the_stream() -> None:
    told = whole(DELTAS, **LOGPROBS)
    last = streamed(DELTAS, **LOGPROBS)[-1].response.model_dump(mode="json", exclude_unset=True)
    assert told["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    for name in ("output", "usage", "status"):
        mine = [{**item, "id": ""} for item in told[name]] if name == "output" else told[name]
        other = [{**item, "id": ""} for item in last[name]] if name == "output" else last[name]
        if name == "output":  # the token that ends the thoughts shows as nothing, and counts for what is said
            mine[1]["content"][0].pop("logprobs"), other[1]["content"][0].pop("logprobs")
        assert mine == other


def test_log_probabilities_are_those_of_what_is_said() -> None:
    expected = ["</t>", "I", " l", "ook."]
    told = whole(DELTAS, **LOGPROBS)["output"][1]["content"][0]["logprobs"]
    assert [each["token"] for each in told] == expected
    pieces = [e for e in streamed(DELTAS, **LOGPROBS) if e.type == "response.output_text.delta"]
    assert [[token.token for token in each.logprobs] for each in pieces] == [["</t>", "I"], [" l", "ook."]]


@pytest.mark.parametrize(
    ("deltas", "output"),
    [
        ([delta(finish=FinishReason.EOS)], [("message", "completed")]),
        ([delta(reasoning="Hm", finish=FinishReason.LENGTH)], [("reasoning", "incomplete")]),
        ([delta(text="a", finish=FinishReason.FILTERED)], [("message", "incomplete")]),
        ([*calls(0, "{"), delta(finish=FinishReason.LENGTH)], [("function_call", "incomplete")]),
        (
            [delta(reasoning="Hm"), delta(text="a", finish=FinishReason.LENGTH)],
            [("reasoning", "completed"), ("message", "incomplete")],
        ),
    ],
    ids=["nothing", "thoughts-alone", "filtered", "half-a-call", "the-last-alone"],
)
def test_the_last_item_has_the_status_of_the_response(
    deltas: list[TokenDelta], output: list[tuple[str, str]]
) -> None:
    last = streamed(deltas)[-1].response
    assert [(item.type, item.status) for item in last.output] == output
    assert [(item["type"], item["status"]) for item in whole(deltas)["output"]] == output
    assert last.status == output[-1][1]


def test_a_stream_that_fails_before_its_first_delta_still_begins() -> None:
    """As after a comment that keeps a connection alive."""
    events = events_of(renderer(stream=True).broken(GenerationFailed("gone")).decode())
    assert [each.type for each in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1].response.output == []


def test_the_tools_of_allowed_tools_alone_are_offered() -> None:
    tools = [{"type": "function", "name": name} for name in ("f", "g")]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    body = {"model": "demo", "input": "x", "tools": tools, "tool_choice": choice}
    call = parsed(body)
    (request,) = call.requests
    assert [tool["function"]["name"] for tool in request.prompt.tools] == ["g"]
    assert request.tool_choice.mode == "required"
    shown = json.loads(call.renderer("r1", model_info()).whole([Choice()], USAGE))
    assert [tool["name"] for tool in shown["tools"]] == ["f", "g"]
    assert shown["tool_choice"] == choice


NAMED: Any = [
    {
        "type": "namespace",
        "name": "crm",
        "description": "d",
        "tools": [{"type": "function", "name": "f0", "parameters": {"type": "object"}}],
    },
    {"type": "custom", "name": "f1"},
]
CALLS = [
    *calls(0, "", "{}"),
    *calls(1, "", '{"input": "+', 'a\\n\\"b', '\\""}'),
    delta(finish=FinishReason.TOOL_CALLS),
]


def test_a_call_names_its_namespace_and_a_custom_tool_has_a_text() -> None:
    events = streamed(CALLS, tools=NAMED)
    output = events[-1].response.model_dump(exclude_unset=True)["output"]
    assert output == whole(CALLS, tools=NAMED)["output"]
    function, custom = output
    assert (function["type"], function["namespace"], function["arguments"]) == ("function_call", "crm", "{}")
    assert {name: custom[name] for name in custom if name != "id"} == {
        "type": "custom_tool_call",
        "call_id": "call_1",
        "name": "f1",
        "input": '+a\n"b"',
        "status": "completed",
    }
    kinds = [event.type for event in events]
    begin = kinds.index("response.output_item.done") + 1
    assert kinds[begin:] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[begin].item.input == ""
    assert events[begin + 1].delta == events[begin + 2].input == custom["input"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "+a', "+a"), ('{"inp', ""), ("", ""), ('{"input": 5}', ""), ("[]", ""), ("}", "")],
)
def test_a_custom_tool_whose_call_was_cut_has_what_there_is_of_its_text(arguments: str, text: str) -> None:
    deltas = [*calls(0, arguments), delta(finish=FinishReason.LENGTH)]
    (item,) = whole(deltas, tools=[{"type": "custom", "name": "f0"}])["output"]
    assert (item["type"], item["input"], item["status"]) == ("custom_tool_call", text, "incomplete")


def test_a_summary_that_is_asked_for_is_the_thoughts() -> None:
    """In the events and the item that the AI SDK and Codex show; nothing is told twice."""
    deltas = [
        delta(reasoning="Hm"),
        delta(reasoning=" so."),
        delta(text="I."),
        delta(finish=FinishReason.EOS),
    ]
    events = streamed(deltas, reasoning={"summary": "auto"})
    assert [event.type for event in events[2:9]] == [
        "response.output_item.added", "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done", "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]  # fmt: skip
    assert [event.delta for event in events[4:6]] == ["Hm", " so."]
    assert events[6].text == "Hm so."
    thought, said = events[-1].response.output
    assert [part.text for part in thought.summary] == ["Hm so."]
    assert not thought.content
    assert said.content[0].text == "I."
    choice = Choice()
    for each in deltas:
        choice.add(each)
    whole = json.loads(renderer(reasoning={"summary": "detailed"}).whole([choice], USAGE))
    assert whole["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm so."}]
