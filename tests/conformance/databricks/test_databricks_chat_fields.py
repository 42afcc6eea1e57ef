"""What a chat body may hold: the bounds of every number, the defaults, what an endpoint's kind decides."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.types import Overflow, ToolMode
from tests.conformance import fields
from tests.conformance.databricks.asks import refused
from tests.conformance.fields import Bounds
from tests.support.gateway import Gateway, chat_body, gateway

PATH = "/serving-endpoints/demo/invocations"
HELLO = [{"role": "user", "content": "Hello!"}]
PROVISIONED = {
    "name": "demo",
    "kind": "provisioned_throughput",
    "served_entities": [{"model": "demo", "max_provisioned_throughput": 10**6}],
}

ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}
BOUNDS: Bounds = {
    "max_tokens": ([1, 3.0, 2**31 - 1, None], []),
    "max_completion_tokens": ([1, None], []),
    "logit_bias": ([{"5": -100, "6": 100}, {}, None], [{"5": 100.5}, {"x": 1}, {"-1": 1}, 5]),
    "n": ([1, None], []),
    "stop": (["x", [], ["x"], ["x"] * 1024, None], ["", [""], ["x", ""], ["x"] * 1025, ["x" * 1025], 5]),
    "stream": ([True, False, None], []),
    "stream_options": ([None], [5, "x", {"include_usage": True}]),  # the answer is not a stream
    "top_logprobs": ([None], [0, 1]),  # without logprobs
    "user": (["", "me", "x" * 512, None], ["x" * 513, 5]),
    "client_request_id": (["", "r-1", None], [5]),
    "usage_context": ([{}, {"team": "sea"}, None], ["x", {"team": 5}]),
    "service_tier": (["auto", "default", "flex", "priority", None], ["fast", 1]),
    "metadata": ([{}, {"a": "b"}, {"a": 1}, None], ["x", [1]]),
    "reasoning_effort": (["none", "low", "medium", "high", None], ["most", 5]),
    "thinking": (
        [{}, {"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}, None],
        [5, {"type": "much"}, {"type": "enabled", "budget_tokens": 0}, {"budget_tokens": "many"}],
    ),
    "response_format": ([None, {"type": "text"}, {"type": "json_object"}], [{"type": "xml"}, 5, {}]),
    "tools": ([None, [], [ADD]], [5, {}, [ADD, ADD], [5], [{"type": "function"}]]),
    "tool_choice": (["none", None], ["auto", "required", {"type": "function", "function": {"name": "f"}}, 5]),
    "extra_params": ([{}, {"top_k": "5"}, None], ["x", {"top_k": 5}]),
    "model": (["demo", "nobody", 5, "", None], []),  # ignored where the path names the endpoint
}


async def post(g: Gateway, **members: Any) -> Any:
    return await g.post(PATH, {"messages": HELLO, **members})


@pytest.mark.parametrize(("field", "value"), fields.accepted(BOUNDS))
async def test_what_is_inside_its_range_is_accepted(field: str, value: Any) -> None:
    async with gateway() as g:
        answer = await post(g, **{field: value})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("field", "value"), fields.refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(field: str, value: Any) -> None:
    async with gateway() as g:
        answer = await post(g, **{field: value})
        refused(answer, field)
        assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"
        await g.check()


@pytest.mark.parametrize("value", [0, 20])
async def test_top_logprobs_from_0_to_20_with_logprobs(value: int) -> None:
    async with gateway() as g:
        assert (await post(g, logprobs=True, top_logprobs=value)).status_code == 200
        assert g.backend.last.logprobs == value
        for wrong in (-1, 21, 1.5):
            refused(await post(g, logprobs=True, top_logprobs=wrong), "top_logprobs", "0 to 20")
        refused(await post(g, logprobs=False, top_logprobs=value), "top_logprobs", "logprobs")


async def test_the_defaults() -> None:
    async with gateway() as g:
        assert (await post(g)).status_code == 200
        asked = g.backend.last
        sampling = asked.sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.0, 0.0)
        assert (sampling.repetition_penalty, sampling.seed, sampling.max_tokens) == (1.0, None, None)
        assert (asked.n, asked.stop, asked.stream, asked.logprobs) == (1, (), False, None)
        assert (asked.prompt.tools, asked.tool_choice.mode, asked.grammar) == ((), ToolMode.AUTO, None)
        assert asked.overflow is Overflow.CLAMP  # as the gateway is set
        assert asked.timeout_s == 600.0


async def test_the_fields_reach_the_model() -> None:
    async with gateway() as g:
        answer = await post(
            g, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=-5, presence_penalty=0.2,
            frequency_penalty=0.1, repetition_penalty=1.1, max_tokens=3, stop=["a"], logit_bias={"7": -3},
            logprobs=True, top_logprobs=2, stream=True, tools=[ADD], parallel_tool_calls=False,
        )  # fmt: skip
        assert answer.status_code == 200
        asked = g.backend.last
    s = asked.sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p, s.seed) == (0.7, 0.9, 5, 0.1, 2**64 - 5)
    assert (s.presence_penalty, s.frequency_penalty, s.repetition_penalty) == (0.2, 0.1, 1.1)
    assert (s.max_tokens, s.logit_bias) == (3, ((7, -3.0),))
    assert (asked.stop, asked.logprobs, asked.stream, asked.tool_choice.parallel) == (("a",), 2, True, False)


async def test_temperature_0_and_top_k_1_are_greedy() -> None:
    async with gateway() as g:
        for greedy in ({"temperature": 0}, {"top_k": 1}):
            assert (await post(g, **greedy)).status_code == 200
            assert g.backend.last.sampling.greedy


async def test_max_completion_tokens_is_max_tokens() -> None:
    async with gateway() as g:
        assert (await post(g, max_completion_tokens=7)).status_code == 200
        assert g.backend.last.sampling.max_tokens == 7
        assert (await post(g, max_completion_tokens=7, max_tokens=7)).status_code == 200
        refused(await post(g, max_completion_tokens=7, max_tokens=8), "max_tokens", "max_completion_tokens")


# --- what the endpoint decides -----------------------------------------------------------------


async def test_n_above_1_is_for_provisioned_endpoints() -> None:
    async with gateway() as g:
        refused(await post(g, n=2), "n: must be 1 on a pay-per-token endpoint")
    async with gateway(endpoints=[PROVISIONED]) as g:
        for n in (2, 128):
            answer = await post(g, n=n)
            assert len(answer.json()["choices"]) == n, answer.text
        refused(await post(g, n=129), "n: must be an integer from 1 to 128")


async def test_n_has_the_endpoints_max_n_and_may_be_allowed_everywhere() -> None:
    settings = {"max_n": 3, "allow_n_everywhere": True}
    async with gateway(endpoints=[{"name": "demo", "databricks": settings}]) as g:
        assert (await post(g, n=3)).status_code == 200
        refused(await post(g, n=4), "n: must be an integer from 1 to 3")


@pytest.mark.parametrize(("tier", "listed"), [("auto", None), ("default", None), ("flex", "service_tier")])
async def test_a_service_tier_is_taken_and_one_that_is_not_here_is_listed(
    tier: str, listed: str | None
) -> None:
    async with gateway() as g:
        for path in ("/serving-endpoints/chat/completions", "/serving-endpoints/demo/invocations"):
            answer = await g.post(path, chat_body(service_tier=tier))
            assert (answer.status_code, answer.headers.get("x-ignored-fields")) == (200, listed)


@pytest.mark.parametrize(
    ("stream", "accept", "default", "expected"),
    [
        (None, None, False, False),
        (None, "*/*", False, False),
        (None, "application/json", False, False),
        (None, "text/event-stream", False, True),
        (None, "text/event-stream; q=1, */*", False, True),
        (None, "application/json, text/event-stream", False, False),
        (False, "text/event-stream", False, False),
        (True, "application/json", False, True),
        (None, "application/json", True, True),
        (False, None, True, False),
    ],
)
async def test_stream_by_field_by_accept_header_and_by_stream_default(
    stream: bool | None, accept: str | None, default: bool, expected: bool
) -> None:
    async with gateway(endpoints=[{"name": "demo", "databricks": {"stream_default": default}}]) as g:
        answer = await g.post(
            PATH, {"messages": HELLO, "stream": stream}, headers={"accept": accept} if accept else {}
        )
        kind = "text/event-stream; charset=utf-8" if expected else "application/json"
        assert answer.headers["content-type"] == kind
        assert g.backend.last.stream is expected


async def test_the_default_system_prompt_goes_before_chats_without_one() -> None:
    system = {"role": "system", "content": "Be brief."}
    async with gateway(endpoints=[{"name": "demo", "databricks": {"system_prompt": "Be brief."}}]) as g:
        await post(g)
        assert g.backend.last.prompt.messages == (system, *HELLO)
        own = {"role": "system", "content": "Be long."}
        await post(g, messages=[own, *HELLO])
        assert g.backend.last.prompt.messages == (own, *HELLO)


# --- unknown fields ----------------------------------------------------------------------------


async def test_an_unknown_field_is_refused_in_the_products_words() -> None:
    async with gateway() as g:
        answer = await post(g, nonsense=1)
        told = 'json: unknown field "nonsense"'
        for_openai = {"message": told, "type": "BAD_REQUEST", "param": None, "code": "BAD_REQUEST"}
        assert (answer.status_code, answer.json()) == (
            400,
            {"error_code": "BAD_REQUEST", "message": told, "error": for_openai},
        )
        for name in ("error_behavior", "timeout", "ignore_eos", "best_of", "suffix"):
            refused(await post(g, **{name: "x"}), f'json: unknown field "{name}"')
        odd = 'a"\n' + "x" * 5_000
        answer = await post(g, **{odd: 1})
        refused(answer, 'json: unknown field "a\\"\\n')
        assert len(answer.content) < 500
        assert (await post(g, nonsense=None)).status_code == 200  # null is absent


async def test_unknown_fields_below_the_top_are_ignored() -> None:
    message: dict[str, Any] = {
        "role": "user",
        "content": "x",
        "annotations": [],
        "refusal": None,
        "weight": 5,
    }
    tool = {**ADD, "cache": 1, "function": {**ADD["function"], "cache": 1}}
    async with gateway() as g:
        assert (await post(g, messages=[message], tools=[tool])).status_code == 200
        assert g.backend.last.prompt.messages == ({"role": "user", "content": "x"},)
        assert "cache" not in str(g.backend.last.prompt.tools)


@pytest.mark.parametrize(
    ("told", "variables", "budget"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}, None),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 64}}, {"enable_thinking": True}, 64),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}, None),
        ({"thinking": {"type": "adaptive"}}, {}, None),
        ({}, {}, None),
    ],
)
async def test_thinking_and_reasoning_effort_reach_the_model(
    told: dict[str, Any], variables: dict[str, Any], budget: int | None
) -> None:
    """By `thinking.type`, `thinking.budget_tokens` and `reasoning_effort`."""
    async with gateway() as g:
        answer = await post(g, **told)
        asked = g.backend.last
    assert "x-ignored-fields" not in answer.headers
    assert (asked.prompt.templating.variables, asked.thinking_tokens) == (variables, budget)


# --- extra_params ------------------------------------------------------------------------------


async def test_extra_params_are_json_or_else_text() -> None:
    extra = {"top_k": "5", "stop": "END", "seed": "7", "logit_bias": '{"3": 1.5}', "user": "me"}
    async with gateway() as g:
        answer = await post(g, extra_params=extra, temperature=0.5)
        assert answer.status_code == 200, answer.text
        asked = g.backend.last
    assert (asked.sampling.top_k, asked.stop, asked.sampling.seed) == (5, ("END",), 7)
    assert (asked.sampling.logit_bias, asked.sampling.temperature) == (((3, 1.5),), 0.5)


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"temperature": "1"}, "extra_params: temperature must not be given outside of it too"),
        ({"top_k": "0"}, "top_k: must be an integer from 1"),
        ({"top_k": "NaN"}, "top_k: must be an integer from 1"),
        ({"nonsense": "1"}, 'json: unknown field "nonsense"'),
        ({"extra_params": "{}"}, "extra_params: extra_params must not"),
        ({"user": "[" * 70 + "]" * 70}, "nest at most 64"),
    ],
)
async def test_extra_params_are_checked_as_fields(extra: dict[str, str], name: str) -> None:
    async with gateway() as g:
        refused(await post(g, extra_params=extra, temperature=0.5), name)
