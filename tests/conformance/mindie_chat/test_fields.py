"""What a chat body may hold: the bounds of every number, the defaults, the rules of messages."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serve_app.types import Overflow
from tests.conformance.conftest import MODEL
from tests.conformance.fields import Bounds, accepted, refused
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import Gateway, chat_body, gateway

PATH = "/mindie/v1/chat/completions"

module_loop = pytest.mark.asyncio(loop_scope="module")

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# field -> (values at the edge of what is accepted, values just beyond it)
BOUNDS: Bounds = {
    "max_tokens": ([1, 3.0, None], []),
    "n": ([1, pytest.param(128, marks=pytest.mark.full)], []),
    "best_of": ([1, pytest.param(128, marks=pytest.mark.full)], []),
    "timeout": ([65_535], []),  # one that is short is a test of its own: it may pass
    "stream": ([True, False, None], []),
    "stop": (
        ["x", ["x"] * 1024, ["x" * 1024], ["x" * 1024] * 32],
        [["x"] * 1025, ["x" * 1025], [""], ["x" * 1024] * 32 + ["x"], 1],
    ),
    "stop_token_ids": ([[0, 5], []], [[-1], ["1"], 5]),
    "model": ([], [None, "", ".demo", "demo-", "de mo", "x" * 257, 5]),
    "stream_options": ([None], [{"include_usage": True}, 5]),
    "response_format": ([None, {"type": "text"}, {"type": "json_object"}], [{"type": "xml"}, 5]),
    "chat_template_kwargs": (
        [None, {}, {"thinking": True}, {f"n{i}": [i] for i in range(64)}, {"x": "y" * 16_000}],
        [{f"n{i}": i for i in range(65)}, {"x": "y" * 16_400}, {"tools": []}, {"a b": 1}, {"": 1}, [1]],
    ),
    "use_beam_search": ([False, None], [True]),  # a search of width 1 is none
    "tools": ([None, [], [TOOL]], [5, [{"type": "function", "function": {"name": "a b"}}], [TOOL, TOOL]]),
    "tool_choice": (["auto", "none", None], ["required", "any", 5]),
}  # fmt: skip

# The same, of what follows from the scripted model.
OF_THE_MODEL: Bounds = {"max_tokens": ([256], [257])}


def brief(value: Any) -> str:
    return repr(value)[:30]


async def post(g: Gateway, **fields: Any) -> Any:
    return await g.post(PATH, chat_body(**fields))


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_range_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    answer = await client.post(PATH, json=chat_body(**{"model": MODEL, "max_tokens": 2, field: value}))
    assert answer.status_code == 200, answer.text


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    answer = await client.post(PATH, json=chat_body(**{"model": MODEL, field: value}))
    check_refusal(answer, field)


@pytest.mark.parametrize(("field", "value"), accepted(OF_THE_MODEL))
async def test_what_the_model_can_is_accepted(field: str, value: Any) -> None:
    async with gateway() as g:
        answer = await post(g, **{field: value})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("field", "value"), refused(OF_THE_MODEL))
async def test_what_the_model_cannot_is_refused_by_name(field: str, value: Any) -> None:
    async with gateway() as g:
        check_refusal(await post(g, **{field: value}), field)
        await g.check()


def check_refusal(answer: httpx.Response, field: str) -> None:
    assert answer.status_code == 422
    body = answer.json()
    assert list(body) == ["error", "error_type"]
    assert body["error_type"] == "Input Validation Error"
    assert field in body["error"]


async def test_top_logprobs_need_logprobs() -> None:
    async with gateway() as g:
        assert (await post(g, logprobs=True, top_logprobs=20)).status_code == 200
        assert (await post(g, logprobs=True, top_logprobs=21)).status_code == 422
        assert (await post(g, top_logprobs=1)).status_code == 422


async def test_a_timeout_may_be_a_part_of_a_second() -> None:
    async with gateway(FakeBackend(hang_after=0)) as g:
        answer = await post(g, timeout=0.1)
        assert (answer.status_code, answer.json()["error_type"]) == (500, "Incomplete Generation")


async def test_best_of_is_at_least_n_and_equal_to_it_in_a_stream() -> None:
    async with gateway() as g:
        assert (await post(g, n=2, best_of=1)).status_code == 422
        assert (await post(g, n=1, best_of=2)).status_code == 200
        assert (await post(g, n=1, best_of=2, stream=True)).status_code == 422
        assert (await post(g, n=2, best_of=2, stream=True)).status_code == 200


async def test_the_defaults() -> None:
    async with gateway() as g:
        assert (await post(g)).status_code == 200
        asked = g.backend.last
        sampling = asked.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.0, 0.0)
        assert (sampling.repetition_penalty, sampling.seed, sampling.max_tokens) == (1.0, None, None)
        assert (asked.n, asked.stop, asked.priority, asked.stream) == (1, (), 0, False)
        flags = (asked.skip_special_tokens, asked.include_stop, sampling.ignore_eos)
        assert flags == (True, False, False)
        assert asked.overflow is Overflow.WINDOW
        assert asked.logprobs is None


async def test_the_fields_reach_the_model() -> None:
    async with gateway() as g:
        answer = await post(
            g, temperature=0.7, top_p=0.9, top_k=5, seed=2**64 - 1, presence_penalty=0.2,
            frequency_penalty=0.1,
            repetition_penalty=1.1, max_tokens=3, stop=["a"], stop_token_ids=[7], n=2, priority=1, timeout=5,
            logprobs=True, top_logprobs=2, ignore_eos=True, skip_special_tokens=False,
            include_stop_str_in_output=True,
        )  # fmt: skip
        assert answer.status_code == 200
        asked = g.backend.last
        s = asked.sampling
        assert (s.temperature, s.top_p, s.top_k, s.seed) == (0.7, 0.9, 5, 2**64 - 1)
        assert (s.presence_penalty, s.frequency_penalty, s.repetition_penalty) == (0.2, 0.1, 1.1)
        assert (s.max_tokens, s.stop_token_ids, s.ignore_eos) == (3, (7,), True)
        assert (asked.stop, asked.include_stop, asked.skip_special_tokens) == (("a",), True, False)
        assert (asked.n, asked.priority, asked.logprobs, asked.timeout_s) == (2, 4, 2, 5.0)


async def test_unknown_fields_are_ignored_in_silence() -> None:
    async with gateway() as g:
        answer = await post(g, nonsense=1)
        assert answer.status_code == 200
        assert "x-ignored-fields" not in answer.headers


async def test_a_temperature_of_zero_may_be_allowed() -> None:
    async with gateway(mindie={"allow_zero_temperature": True}) as g:
        assert (await post(g, temperature=0)).status_code == 200
        assert g.backend.last.sampling.greedy
        assert (await post(g, temperature=-0.1)).status_code == 422


async def test_max_tokens_may_be_shortened() -> None:
    async with gateway(mindie={"clamp_max_tokens": True}) as g:
        assert (await post(g, max_tokens=10_000)).status_code == 200
        assert g.backend.last.sampling.max_tokens == 256


def message(**fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": "x", **fields}


CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "messages",
    [
        [message(), message()],
        [message(role="assistant"), message(role="system"), message(role="user")],
        [message(), {"role": "assistant", "tool_calls": [CALL]}, message(role="tool", tool_call_id="c1")],
        [message(), message(role="assistant", content="", tool_calls=[CALL])],
        [message(), message(role="assistant", content=None, tool_calls=[CALL])],
        [message(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
        [message(content="x" * 524_288)],
        [message(content="問" * 262_144), message(content="x" * 262_144)],
    ],
    ids=brief,
)
async def test_messages_that_are_accepted(messages: Any) -> None:
    async with gateway() as g:
        answer = await post(g, messages=messages)
        assert answer.status_code == 200, answer.text[:300]
        assert len(g.backend.last.prompt.messages or ()) == len(messages)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "x",
        [5],
        [{"content": "x"}],
        [message(role="developer")],
        [message(role=5)],
        [{"role": "user"}],
        [message(content=None)],
        [message(content="")],
        [message(content=5)],
        [message(content=[{"type": "text", "text": ""}])],
        [message(content=[{"type": "image_url", "image_url": {"url": "x"}}])],
        [message(content=[{"type": "text", "text": "x" * 524_289}])],
        [message(role="assistant", content="", tool_calls=[])],
        [message(content="", tool_calls=[CALL])],
        [message(role="tool")],
        [message(role="tool", tool_call_id="")],
        [{"role": "assistant"}],
        [{"role": "assistant", "tool_calls": [CALL]}],
        [message()] * 2_049,
        [message(content="x" * 524_289)],
        [message(content="x" * 524_288), message()],
    ],
    ids=brief,
)
async def test_messages_that_are_refused(messages: Any) -> None:
    async with gateway() as g:
        answer = await post(g, messages=messages)
        assert answer.status_code == 422
        assert "messages" in answer.json()["error"]
        assert not g.backend.requests


async def test_text_parts_are_joined_by_line_breaks() -> None:
    async with gateway() as g:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert (await post(g, messages=[message(content=parts)])).status_code == 200
        assert (g.backend.last.prompt.messages or ())[0]["content"] == "a\nb"


async def test_the_limit_on_characters_is_a_setting() -> None:
    async with gateway(mindie={"max_input_chars": 3}) as g:
        assert (await post(g, messages=[message(content="abc")])).status_code == 200
        assert (await post(g, messages=[message(content="abcd")])).status_code == 422
