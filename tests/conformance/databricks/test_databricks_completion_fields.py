"""What a completion body may hold, and what it asks of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_app.types import Overflow, Prompt
from tests.conformance import fields
from tests.conformance.databricks.asks import refused
from tests.conformance.fields import Bounds
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import Gateway, gateway

PATH = "/serving-endpoints/demo/invocations"
ENDPOINT = {"name": "demo", "task": "llm/v1/completions"}
PROVISIONED = {
    **ENDPOINT,
    "kind": "provisioned_throughput",
    "served_entities": [{"model": "demo", "max_provisioned_throughput": 10**6}],
}

BOUNDS: Bounds = {
    "prompt": (
        ["x", "", ["x"], ["x", "y"], ["x"] * 128],
        [None, [], 5, [5], [[1, 2]], [1, 2], ["x", 5], {}, ["x"] * 129],
    ),
    "max_tokens": ([1, 3.0, None], [0, -1, 1.5, "1", True]),
    "temperature": ([0, 2, None], [-0.01, 2.01, "1"]),
    "top_p": ([0.001, 1, None], [0, 1.01]),
    "top_k": ([1, None], [0, -1, 1.5]),
    "min_p": ([0, 1, None], [-0.01, 1.01]),
    "seed": ([-(2**63), 2**63 - 1, None], [-(2**63) - 1, 2**63]),
    "presence_penalty": ([-2, 2, None], [-2.01, 2.01]),
    "frequency_penalty": ([-2, 2, None], [-2.01, 2.01]),
    "repetition_penalty": ([0.001, 2, None], [0, 2.01]),
    "logit_bias": ([{"5": 1}, None], [{"x": 1}]),
    "n": ([1, None], [0, 2, 129]),
    "stop": (["x", ["x"], [], None], ["", [""], 5]),
    "stream": ([True, False, None], [1]),
    "stream_options": ([None], [{"include_usage": True}]),
    "error_behavior": (["truncate", "error", None], ["", "ignore", True]),
    "suffix": (["", "x", None], [5, ["x"]]),
    "echo": ([True, False, None], [1, "true"]),
    "use_raw_prompt": ([True, False, None], [1, "true"]),
    "logprobs": ([0, 5, None], [-1, 6, True, 1.5]),
    "user": (["me", None], ["x" * 513]),
    "client_request_id": (["r", None], [5]),
    "usage_context": ([{"a": "b"}, None], [{"a": 5}]),
    "extra_params": ([{"top_k": "5"}, None], [{"top_k": 5}]),
    "model": (["nobody", None], []),  # ignored where the path names the endpoint
}


async def post(g: Gateway, **members: Any) -> Any:
    return await g.post(PATH, {"prompt": "Once", **members})


@pytest.mark.parametrize(("field", "value"), fields.accepted(BOUNDS))
async def test_what_is_inside_its_range_is_accepted(field: str, value: Any) -> None:
    async with gateway(endpoints=[ENDPOINT]) as g:
        answer = await post(g, **{field: value})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("field", "value"), fields.refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(field: str, value: Any) -> None:
    async with gateway(endpoints=[ENDPOINT]) as g:
        answer = await post(g, **{field: value})
        refused(answer, field)
        assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"
        assert not g.backend.requests


@pytest.mark.parametrize("name", ["tools", "messages", "best_of", "instruction", "top_logprobs", "nonsense"])
async def test_fields_of_other_tasks_are_unknown(name: str) -> None:
    async with gateway(endpoints=[ENDPOINT]) as g:
        answer = await post(g, **{name: "x"})
        told = f'json: unknown field "{name}"'
        assert (answer.json()["error_code"], answer.json()["message"]) == ("BAD_REQUEST", told)
        assert answer.status_code == 400


async def test_the_defaults() -> None:
    async with gateway(endpoints=[ENDPOINT]) as g:
        assert (await post(g)).status_code == 200
        asked = g.backend.last
    s = asked.sampling
    assert (s.temperature, s.top_p, s.top_k, s.seed, s.max_tokens) == (1.0, 1.0, 0, None, None)
    assert (asked.n, asked.stop, asked.stream, asked.logprobs, asked.echo) == (1, (), False, None, False)
    assert asked.overflow is Overflow.CLAMP  # as the gateway is set
    assert asked.prompt.suffix is None


async def test_use_raw_prompt_decides_about_the_template() -> None:
    templated = Prompt(messages=({"role": "user", "content": "Once"},))
    async with gateway(endpoints=[ENDPOINT]) as g:
        for raw, expected in ((None, templated), (False, templated), (True, Prompt(text="Once"))):
            assert (await post(g, use_raw_prompt=raw)).status_code == 200
            assert g.backend.last.prompt == expected
    bare = FakeBackend(infos=[replace(model_info(), has_chat_template=False)])
    async with gateway(bare, endpoints=[ENDPOINT]) as g:
        assert (await post(g)).status_code == 200
        assert g.backend.last.prompt == Prompt(text="Once")


async def test_error_behavior_truncate_lets_the_prompt_give_way() -> None:
    async with gateway(endpoints=[ENDPOINT]) as g:
        for value, overflow in (("truncate", Overflow.TRUNCATE), ("error", Overflow.ERROR)):
            await post(g, error_behavior=value)
            assert g.backend.last.overflow is overflow


async def test_error_behavior_is_for_pay_per_token_and_n_for_provisioned_endpoints() -> None:
    async with gateway(endpoints=[PROVISIONED]) as g:
        for value in ("truncate", "error"):
            refused(await post(g, error_behavior=value), "error_behavior", "pay-per-token")
        answer = await post(g, n=3)
        assert len(answer.json()["choices"]) == 3
    async with gateway(endpoints=[ENDPOINT]) as g:
        refused(await post(g, n=2), "n: must be 1 on a pay-per-token endpoint")


async def test_every_prompt_of_a_list_is_a_request() -> None:
    async with gateway(endpoints=[PROVISIONED]) as g:
        answer = await post(g, prompt=["a", "b", "c"], n=2, max_tokens=4, use_raw_prompt=True)
        assert [request.prompt.text for request in g.backend.requests] == ["a", "b", "c"]
        assert {(r.n, r.sampling.max_tokens) for r in g.backend.requests} == {(2, 4)}
    assert [choice["index"] for choice in answer.json()["choices"]] == list(range(6))


async def test_stream_by_accept_header_and_by_stream_default() -> None:
    async with gateway(endpoints=[ENDPOINT]) as g:
        answer = await g.post(PATH, {"prompt": "x"}, headers={"accept": "text/event-stream"})
        assert answer.headers["content-type"].startswith("text/event-stream")
    async with gateway(endpoints=[{**ENDPOINT, "databricks": {"stream_default": True}}]) as g:
        assert (await post(g)).headers["content-type"].startswith("text/event-stream")
