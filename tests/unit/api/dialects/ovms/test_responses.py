"""The renderer of the model server's responses: what no demo model does, thoughts among it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.api.dialects.ovms.responses.dialect import ResponseDialect
from serve_app.api.protocol.dialect import Choice, Renderer
from serve_app.config import OvmsConfig
from serve_app.errors import GenerationFailed
from serve_app.types import FinishReason, TokenDelta, Usage
from tests.support.fakes_backend import logprob_of, model_info
from tests.support.response_events import unnamed_events_of
from tests.unit.api.dialects.responses.test_renderer import DELTAS, calls, delta

USAGE = Usage(prompt_tokens=5, completion_tokens=9, reasoning_tokens=3)


def renderer(**fields: Any) -> Renderer:
    body = {"model": "demo", "input": "x", **fields}
    return (
        ResponseDialect(OvmsConfig(), notes_pictures=True)
        .parse(json.dumps(body).encode())
        .renderer("r1", model_info())
    )


def streamed(deltas: list[TokenDelta], **fields: Any) -> list[dict[str, Any]]:
    writes = renderer(stream=True, **fields)
    return unnamed_events_of(
        (b"".join(writes.event(0, each) for each in deltas) + writes.end(USAGE)).decode()
    )


def whole(*choices: list[TokenDelta], **fields: Any) -> dict[str, Any]:
    listed = []
    for deltas in choices:
        choice = Choice()
        for each in deltas:
            choice.add(each)
        listed.append(choice)
    found: dict[str, Any] = json.loads(renderer(**fields).whole(listed, USAGE))
    return found


def test_thoughts_are_the_summary_of_an_item() -> None:
    found = streamed(
        [delta(reasoning="Hm"), delta(reasoning=" so."), delta(text="I", finish=FinishReason.EOS)]
    )
    where = {"output_index": 0, "summary_index": 0, "item_id": "rs-0"}
    part = {"type": "summary_text", "text": "Hm so."}
    expected = [
        ("response.output_item.added", {
            "output_index": 0, "item": {"id": "rs-0", "type": "reasoning", "summary": []}}),
        ("response.reasoning_summary_part.added", {**where, "part": {**part, "text": ""}}),
        ("response.reasoning_summary_text.delta", {**where, "delta": "Hm"}),
        ("response.reasoning_summary_text.delta", {**where, "delta": " so."}),
        ("response.reasoning_summary_text.done", {**where, "text": "Hm so."}),
        ("response.reasoning_summary_part.done", {**where, "part": part}),
        ("response.output_item.done", {
            "output_index": 0, "item": {"id": "rs-0", "type": "reasoning", "summary": [part]}}),
    ]  # fmt: skip
    for event, (kind, members) in zip(found[2:], expected, strict=False):
        assert {**event, "sequence_number": 0} == {"type": kind, "sequence_number": 0, **members}
    assert [item["id"] for item in found[-1]["response"]["output"]] == ["rs-0", "msg-0"]


def test_a_whole_response_is_the_last_of_the_stream() -> None:
    told, last = whole(DELTAS), streamed(DELTAS)[-1]["response"]
    for name in ("output", "usage", "status"):
        assert told[name] == last[name]
    assert [item["type"] for item in told["output"]] == ["reasoning", "message", *["function_call"] * 2]
    assert [item["id"] for item in told["output"]] == ["rs-0", "msg-0", "call_0", "call_1"]


def test_an_answer_of_nothing_has_no_item() -> None:
    """Clients send items back, and an empty message would be a turn."""
    nothing = [delta(finish=FinishReason.EOS)]
    events = streamed(nothing)
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    assert events[-1]["response"]["output"] == whole(nothing)["output"] == []


def test_one_answer_that_is_cut_makes_a_response_of_several_incomplete() -> None:
    cut, done = delta(text="a", finish=FinishReason.LENGTH), delta(text="b", finish=FinishReason.EOS)
    for choices in ([[cut], [done]], [[done], [cut]]):
        found = whole(*choices, n=2, best_of=2)
        assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_tokens"})
        told = {item["content"][0]["text"]: item["status"] for item in found["output"]}
        assert told == {"a": "incomplete", "b": "completed"}
    assert whole([done], [done], n=2, best_of=2)["status"] == "completed"


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}, {"top_logprobs": 1}])
def test_logprobs_are_of_what_is_said_and_only_if_asked_for(fields: dict[str, Any]) -> None:
    deltas = [
        delta(reasoning="Hm", logprobs=(logprob_of("Hm", 0),)),
        delta(text="I", logprobs=(logprob_of("I", 0),)),
        delta(finish=FinishReason.EOS, logprobs=(logprob_of("", 0),)),
    ]
    part = whole(deltas, **fields)["output"][1]["content"][0]
    assert part == streamed(deltas, **fields)[-1]["response"]["output"][1]["content"][0]
    assert [each["token"] for each in part.get("logprobs", ())] == (["I", ""] if fields else [])
    assert ("logprobs" in part) == bool(fields)


def test_a_stream_that_fails_before_its_first_delta_still_begins() -> None:
    events = unnamed_events_of(renderer(stream=True).broken(GenerationFailed("gone")).decode())
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "response.failed",
    ]  # fmt: skip
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "gone"}


def test_half_a_call_is_incomplete() -> None:
    last = streamed([*calls(0, "{"), delta(finish=FinishReason.LENGTH)])[-1]["response"]
    assert [(item["type"], item["status"]) for item in last["output"]] == [("function_call", "incomplete")]
