"""What a chat body may hold: the bounds of every field, alone and beside others; messages."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.ovms.asks import answer, ask

pytestmark = pytest.mark.asyncio(loop_scope="module")

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
BOOLEAN = ([True, False, None], [1, 0, "true"])
PENALTY: tuple[list[Any], list[Any]] = ([-2, 2, 0.5, None], [-2.01, 2.01, "1", True])

BOUNDS: Bounds = {
    "max_tokens": ([1, 3.0, pytest.param(None, marks=pytest.mark.own_server),
         pytest.param(2**31 - 1, marks=pytest.mark.own_server)], []),
    "stream": ([True, False, None], []),
    "best_of": ([1, 2, 8, None], [21]),
    "num_beam_groups": ([1, None], []),
    "length_penalty": ([-10, 0, 1, 10, None], []),
    "early_stopping": ([True, False, "never", None], [1, "no", "true"]),
    "use_beam_search": ([False, None], [True]),
    "logit_bias": (
        [{}, {"5": -100, "6": 100}, None],
        [{"5": 100.1}, {"5": -100.1}, {"x": 1}, {"-1": 1}, [], 5],
    ),
    "stop": (["x", [], ["x"] * 16, None], [["x"] * 17, "", [""], [5], 5]),
    "stop_token_ids": ([[], [0, 5], None], [[-1], ["1"], 5]),
    "min_tokens": ([0, 2, None], []),
    "prompt_logprobs": ([0, 20, None], []),
    "truncate_prompt_tokens": ([-1, 1, 5.0, None], []),
    "response_format": (
        [{"type": "text"}, {"type": "json_object"}, {"type": "const_string", "value": "x"}, None],
        [{"type": "xml"}, {}, 5, {"type": "sequence", "elements": []}],
    ),
    "logits_processors": ([[], None], [5, [5], [""], ["unknown"], [{"qualname": "unknown"}], [{}]]),
    "tools": ([[], [TOOL], None], [5, [5], [{"type": "function"}], [TOOL, TOOL]]),
    "tool_choice": (["auto", "none", None], ["required", "any", 5, {"type": "function"}]),
    "functions": ([[], [FUNCTION], None], [5, [5], [FUNCTION, FUNCTION]]),
    "function_call": (["auto", "none", None], ["required", 5, {"name": "f"}]),
    "chat_template_kwargs": (
        [{}, {"enable_thinking": False, "add_generation_prompt": True}, None],
        [5, {"": 1}, {"messages": []}, {"add_generation_prompt": 1}],
    ),
    "user": (["", "ann", "x" * 512, None], ["x" * 513, 5]),
    "stream_options": ([None], [{}, {"include_usage": True}, 5]),
    "model": ([], [None, 5, "", ["demo"]]),
    "messages": ([], [None, [], "x", {}, 5]),
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    found = await ask(client, **{field: value})
    assert found.status_code == 200, found.text


@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    found = await ask(client, **{field: value})
    assert found.status_code == 400
    body = found.json()
    assert list(body) == ["error"]
    assert field in body["error"]


TOGETHER: dict[str, tuple[dict[str, Any], str | None]] = {
    "n=best_of": ({"n": 2, "best_of": 2}, None),
    "n<best_of": ({"n": 1, "best_of": 3}, None),
    "n>best_of": ({"n": 3, "best_of": 2}, "n:"),
    "n-without-best_of": ({"n": 2}, "n:"),
    "n=0": ({"n": 0, "best_of": 2}, "n:"),
    "best_of=20": ({"best_of": 20, "temperature": 1}, None),
    "best_of-beams-in-a-stream": ({"best_of": 2, "stream": True}, "stream"),
    "best_of-above-n-in-a-stream": ({"best_of": 2, "stream": True, "temperature": 1}, "best_of"),
    "best_of=n-in-a-stream": ({"n": 2, "best_of": 2, "stream": True, "temperature": 1}, None),
    "use_beam_search-with-a-temperature": ({"best_of": 2, "use_beam_search": True, "temperature": 2}, None),
    "num_beam_groups-divides": ({"best_of": 4, "num_beam_groups": 2}, None),
    "num_beam_groups-does-not-divide": ({"best_of": 4, "num_beam_groups": 3}, "num_beam_groups"),
    "num_beam_groups-without-beams": ({"num_beam_groups": 3}, None),
    "ignore_eos-and-4000": ({"ignore_eos": True, "max_tokens": 4000, "stop": ["e", " "]}, None),
    "ignore_eos-and-4001": ({"ignore_eos": True, "max_tokens": 4001}, "max_tokens"),
    "top_logprobs=0": ({"logprobs": True, "top_logprobs": 0}, None),
    "top_logprobs=20": ({"logprobs": True, "top_logprobs": 20}, None),
    "top_logprobs=21": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    "top_logprobs=-1": ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    "top_logprobs-without-logprobs": ({"top_logprobs": 1}, "top_logprobs"),
    "prompt_logprobs-in-a-stream": ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    "include_usage": ({"stream": True, "stream_options": {"include_usage": True}}, None),
    "include_usage=1": ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
    "max_completion_tokens": ({"max_tokens": None, "max_completion_tokens": 1}, None),
    "max_completion_tokens=0": (
        {"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"
    ),
    "max_completion_tokens-above-4000": (
        {"max_tokens": None, "max_completion_tokens": 4001, "ignore_eos": True}, "max_completion_tokens",
    ),
    "max_completion_tokens-differs": ({"max_completion_tokens": 3}, "max_tokens"),
    "tool_choice-names-a-tool": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, None,
    ),
    "functions-beside-tools": ({"tools": [TOOL], "functions": [FUNCTION]}, "functions"),
    "speculation": (
        {"num_assistant_tokens": 3, "assistant_confidence_threshold": 0.4, "max_ngram_size": 3}, None,
    ),
    "unknown-fields": ({"nonsense": 1, "guided_regex": 5, "typical_p": "x"}, None),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "complaint"), TOGETHER.values(), ids=TOGETHER.keys())
async def test_fields_beside_each_other(
    client: httpx.AsyncClient, fields: dict[str, Any], complaint: str | None
) -> None:
    found = await ask(client, **fields)
    assert found.status_code == (200 if complaint is None else 400), found.text
    if complaint is not None:
        assert complaint in found.json()["error"]


async def test_unknown_fields_are_ignored_in_silence(client: httpx.AsyncClient) -> None:
    assert "x-ignored-fields" not in (await ask(client, nonsense=1)).headers


USER = {"role": "user", "content": "x"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

SOUND = {
    "content-missing": [{"role": "system"}, {"role": "user"}],
    "content-missing-of-assistant": [USER, {"role": "assistant"}, USER],
    "empty-content": [{"role": "user", "content": ""}],
    "content-in-parts": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    "empty-content-with-tool_calls": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "no-alternation": [USER, USER],
    "null-content-with-tool_calls": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ],
}
UNSOUND = {
    "no-object": [5],
    "role-missing": [{"content": "x"}],
    "role-not-a-string": [{"role": 5, "content": "x"}],
    "role-unknown": [{"role": "critic", "content": "x"}],
    "content-null": [{"role": "user", "content": None}],
    "content-null-of-assistant": [USER, {"role": "assistant", "content": None}],
    "content-a-number": [{"role": "user", "content": 5}],
    "content-an-image": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
}


@pytest.mark.parametrize("messages", SOUND.values(), ids=SOUND.keys())
async def test_messages_that_are_accepted(client: httpx.AsyncClient, messages: Any) -> None:
    assert (await answer(client, messages=messages))["choices"]


@pytest.mark.parametrize("messages", UNSOUND.values(), ids=UNSOUND.keys())
async def test_messages_that_are_refused(client: httpx.AsyncClient, messages: Any) -> None:
    found = await ask(client, messages=messages)
    assert found.status_code == 400
    assert "messages" in found.json()["error"]
