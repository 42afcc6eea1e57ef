"""The order of `messages`, what each role may hold, and calls with their answers."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.api.dialects.databricks.messages import ORDER
from tests.support.gateway import gateway

PATH = "/serving-endpoints/demo/invocations"

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
SAID = {"role": "assistant", "content": "a"}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
TOOL = {"role": "tool", "content": "t", "tool_call_id": "c1"}


def names(messages: Any) -> str:
    if not isinstance(messages, list):
        return repr(messages)[:30]
    return "-".join(str(m.get("role") if isinstance(m, dict) else m)[:9] for m in messages) or "empty"


async def post(messages: Any) -> tuple[Any, Any]:
    """(the answer, the messages that reached the model)"""
    async with gateway() as g:
        answer = await g.post(PATH, {"messages": messages})
        requests = g.backend.requests
        return answer, requests[-1].prompt.messages if requests else None


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [SYSTEM, USER],
        [USER, SAID, USER],
        [SYSTEM, USER, SAID, USER, SAID, USER],
        [USER, CALLS, TOOL],
        [USER, CALLS, TOOL, TOOL],
        [USER, CALLS, TOOL, SAID, USER],
        [USER, CALLS, TOOL, CALLS, TOOL],
        [SYSTEM, USER, SAID, USER, CALLS, TOOL, SAID, USER],
    ],
    ids=names,
)
async def test_messages_in_order(messages: Any) -> None:
    answer, reached = await post(messages)
    assert answer.status_code == 200, answer.text
    assert [message["role"] for message in reached] == [message["role"] for message in messages]


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM],
        [SAID],
        [SAID, USER],
        [TOOL],
        [USER, SAID],
        [USER, USER],
        [SYSTEM, SYSTEM, USER],
        [USER, SYSTEM],
        [USER, SAID, SYSTEM, USER],
        [SYSTEM, SAID, USER],
        [USER, SAID, SAID, USER],
        [USER, TOOL],
        [USER, SAID, TOOL],
        [USER, CALLS],
        [USER, CALLS, USER],
        [USER, CALLS, SAID, USER],
        [USER, CALLS, TOOL, USER],
        [USER, CALLS, TOOL, SAID],
        [USER, CALLS, TOOL, SYSTEM, USER],
    ],
    ids=names,
)
async def test_messages_out_of_order(messages: Any) -> None:
    answer, reached = await post(messages)
    assert answer.status_code == 400
    assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"
    assert answer.json()["message"].endswith(ORDER)
    assert reached is None


@pytest.mark.parametrize("messages", [None, [], "x", {}, 5, [USER, SAID] * 1_024 + [USER]], ids=names)
async def test_messages_are_required_and_a_list_that_is_not_empty(messages: Any) -> None:
    answer, _ = await post(messages)
    assert answer.status_code == 400
    assert "messages: is required" in answer.json()["message"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (5, "messages.0"),
        ({"content": "x"}, "messages.0.role"),
        ({"role": "developer", "content": "x"}, "messages.0.role"),
        ({"role": "function", "name": "f", "content": "x"}, "messages.0.role"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": None}, "messages.0.content"),
        ({"role": "system"}, "messages.0.content"),
        ({"role": "assistant"}, "messages.0.content"),
        ({"role": "tool", "tool_call_id": "c1"}, "messages.0.content"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "video"}]}, "messages.0.content.0.type"),
        ({**USER, "tool_calls": [CALL]}, "messages.0.tool_calls"),
        ({**USER, "tool_call_id": "c1"}, "messages.0.tool_call_id"),
        ({**SAID, "tool_call_id": "c1"}, "messages.0.tool_call_id"),
        ({"role": "tool", "content": "x"}, "messages.0.tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "messages.0.tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages.0.tool_call_id"),
        ({**CALLS, "tool_calls": "x"}, "messages.0.tool_calls"),
        ({**CALLS, "tool_calls": [5]}, "messages.0.tool_calls.0"),
        ({**CALLS, "tool_calls": [{**CALL, "id": None}]}, "messages.0.tool_calls.0.id"),
        ({**CALLS, "tool_calls": [{**CALL, "type": None}]}, "messages.0.tool_calls.0.type"),
        ({**CALLS, "tool_calls": [{**CALL, "type": "x"}]}, "messages.0.tool_calls.0.type"),
        ({**CALLS, "tool_calls": [{**CALL, "function": None}]}, "messages.0.tool_calls.0.function"),
        ({**CALLS, "tool_calls": [{**CALL, "function": {"name": "f"}}]}, "function.arguments"),
        ({**CALLS, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": 5}}]}, "arguments"),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_messages_that_are_refused_by_name(message: Any, field: str) -> None:
    """What is wrong in itself is told before the order."""
    answer, reached = await post([message])
    assert answer.status_code == 400
    assert field in answer.json()["message"], answer.text
    assert reached is None


async def test_tool_calls_name_their_function() -> None:
    nameless = {**CALLS, "tool_calls": [{**CALL, "function": {"arguments": "{}"}}]}
    answer, _ = await post([USER, nameless, TOOL])
    assert answer.status_code == 400
    assert "messages.1.tool_calls.0.function.name" in answer.json()["message"]


async def test_tool_call_id_is_one_of_the_preceding_calls() -> None:
    two = {**CALLS, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
    answers = [TOOL, {**TOOL, "tool_call_id": "c2"}]
    assert (await post([USER, two, *answers]))[0].status_code == 200
    for wrong in ([USER, CALLS, answers[1]], [USER, two, TOOL, CALLS, answers[1]]):
        answer, _ = await post(wrong)
        assert answer.status_code == 400
        assert f"messages.{len(wrong) - 1}.tool_call_id" in answer.json()["message"]


@pytest.mark.parametrize("content", [None, "", []], ids=repr)
async def test_content_beside_tool_calls_is_absent_null_or_empty(content: Any) -> None:
    answer, reached = await post([USER, {**CALLS, "content": content}, TOOL])
    assert answer.status_code == 200, answer.text
    assert reached[1]["content"] == ""


async def test_what_a_model_said_before_its_calls_is_taken_back() -> None:
    said: list[Any] = ["Let me look.\n", [{"type": "text", "text": "Let me look.\n"}]]
    for content in said:
        answer, reached = await post([USER, {**CALLS, "content": content}, TOOL])
        assert answer.status_code == 200, answer.text
        assert reached[1]["content"] == "Let me look.\n"
        assert len(reached[1]["tool_calls"]) == 1


def thought(*texts: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in texts]}


async def test_thoughts_of_an_earlier_answer_are_taken_back_beside_its_text() -> None:
    content = [thought("Hm.", "So."), {"type": "text", "text": "x"}, thought("Well.")]
    answer, reached = await post([USER, {"role": "assistant", "content": content}, USER])
    assert answer.status_code == 200, answer.text
    assert reached[1] == {"role": "assistant", "content": "x", "reasoning_content": "Hm.\nSo.\nWell."}
    answer, reached = await post([USER, {**CALLS, "content": [thought("Hm.")]}, TOOL])
    assert answer.status_code == 200, answer.text
    assert (reached[1]["content"], reached[1]["reasoning_content"]) == ("", "Hm.")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": [{"type": "reasoning"}]}, "messages.1.content.0.summary"),
        ({"role": "assistant", "content": [thought("x", 5)]}, "messages.1.content.0.summary.1.text"),
        (
            {"role": "assistant", "content": [{"type": "reasoning", "summary": [{"text": "x"}]}]},
            "messages.1.content.0.summary.0",
        ),
    ],
)
async def test_thoughts_of_another_form_are_refused_by_name(message: dict[str, Any], param: str) -> None:
    answer, _ = await post([USER, message, USER])
    assert answer.status_code == 400
    assert param in answer.json()["message"]


async def test_keys_that_the_protocol_does_not_know_are_ignored_whatever_they_hold() -> None:
    call = {"name": "f", "arguments": "{}"}
    odd = {"name": 7, "reasoning": {"a": 1}, "reasoning_content": [], "function_call": call}
    answer, reached = await post([{**USER, **odd}, {"role": "assistant", "content": "x", **odd}, USER])
    assert answer.status_code == 200, answer.text
    assert [sorted(message) for message in reached] == [["content", "role"]] * 3


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}], ids=["text", "object"])
async def test_arguments_are_text_or_an_object(arguments: Any) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    answer, reached = await post([USER, {**CALLS, "tool_calls": [call]}, TOOL])
    assert answer.status_code == 200, answer.text
    assert reached[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert reached[1]["tool_calls"][0]["id"] == reached[2]["tool_call_id"] == "c1"


async def test_what_sdks_echo_of_earlier_answers_is_accepted() -> None:
    echoed: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
    }
    answer, reached = await post([USER, echoed, {**USER, "tool_call_id": "", "tool_calls": []}])
    assert answer.status_code == 200, answer.text
    assert reached[1] == SAID


async def test_content_may_be_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer, reached = await post([{"role": "user", "content": parts}])
    assert answer.status_code == 200, answer.text
    assert reached[0]["content"] == "a\nb"
