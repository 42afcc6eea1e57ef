"""What only an engine can show: determinism, beams and ranks, ends, tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.conformance import conftest
from tests.conformance.ovms.asks import VARIED, answer, ask, text

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_same_seed_gives_the_same_text_alone_and_among_others(client: httpx.AsyncClient) -> None:
    alone = [await text(client, **VARIED, seed=2**32 - 1) for _ in range(2)]
    together = await asyncio.gather(
        *(text(client, **VARIED, seed=2**32 - 1) for _ in range(8)),
        *(text(client, **VARIED, seed=seed) for seed in range(1, 9)),
    )
    assert set(alone) | set(together[:8]) == {alone[0]}
    assert len(set(together)) > 1


def mean(choice: dict[str, Any], penalty: float = 1.0) -> float:
    """The score of a choice: its log-probabilities' sum, by its length to the power of `penalty`."""
    values = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return sum(values) / len(values) ** penalty


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("temperature", [0, 2], ids=["beams", "samples"])
@pytest.mark.parametrize("n", [2, 6])
async def test_choices_come_best_first(
    client: httpx.AsyncClient, penalty: float, temperature: float, n: int
) -> None:
    options = {**VARIED, "temperature": temperature, "best_of": 6, "n": n, "length_penalty": penalty}
    choices = (await answer(client, **options, logprobs=True))["choices"]
    assert [choice["index"] for choice in choices] == list(range(n))
    scores = [mean(choice, penalty) for choice in choices]
    assert scores == sorted(scores, reverse=True)


async def test_beams_are_distinct_and_the_first_is_no_worse_than_greedy(client: httpx.AsyncClient) -> None:
    options = {"max_tokens": 8, "logprobs": True, "ignore_eos": True}
    beams = (await answer(client, **options, best_of=4, n=4))["choices"]
    ids = [tuple(entry["token"] for entry in choice["logprobs"]["content"]) for choice in beams]
    assert len(set(ids)) == 4
    (greedy,) = (await answer(client, **options))["choices"]
    assert mean(beams[0]) >= mean(greedy) - 1e-6


async def test_beams_are_deterministic_among_others(client: httpx.AsyncClient) -> None:
    options = {"best_of": 3, "n": 3, "max_tokens": 10}
    alone = (await answer(client, **options))["choices"]
    several = await asyncio.gather(
        *(answer(client, **options) for _ in range(8)), *(text(client, **VARIED) for _ in range(4))
    )
    for found in several[:8]:
        assert isinstance(found, dict)
        assert found["choices"] == alone


@pytest.mark.parametrize("early", [True, False, "never"])
async def test_beams_of_every_shape(client: httpx.AsyncClient, early: bool | str) -> None:
    shape = {"num_beam_groups": 2, "diversity_penalty": 2.0, "length_penalty": -1.0, "early_stopping": early}
    choices = (await answer(client, best_of=4, n=3, max_tokens=6, **shape))["choices"]
    assert len(choices) == 3


async def test_usage_counts_the_returned_choices_alone(client: httpx.AsyncClient) -> None:
    options = {**VARIED, "max_tokens": 5, "ignore_eos": True}
    for n in (1, 2, 4):
        usage = (await answer(client, **options, best_of=4, n=n))["usage"]
        assert usage["completion_tokens"] == 5 * n


@pytest.mark.own_server
async def test_max_tokens_above_the_window_are_lowered(client: httpx.AsyncClient) -> None:
    window = (await client.get(f"/v3/models/{conftest.MODEL}")).json()["max_model_len"]
    for limit in ({"max_tokens": window * 2}, {"max_tokens": None}):
        found = await answer(client, **limit, ignore_eos=True)
        assert found["usage"]["total_tokens"] == window
        assert found["choices"][0]["finish_reason"] == "length"


@pytest.mark.own_server
async def test_ignore_eos_goes_on_behind_the_end(client: httpx.AsyncClient) -> None:
    ended = await answer(client, max_tokens=100)
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] < 100
    going = await answer(client, max_tokens=100, ignore_eos=True)
    assert going["usage"]["completion_tokens"] == 100


async def test_stop_strings_end_an_answer_and_may_be_kept(client: httpx.AsyncClient) -> None:
    whole = await text(client, max_tokens=12)
    stop = whole[3:5]
    cut = whole[: whole.index(stop)]
    (choice,) = (await answer(client, max_tokens=12, stop=[stop]))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (cut, "stop")
    kept = {"stop": stop, "include_stop_str_in_output": True}
    assert await text(client, max_tokens=12, **kept) == cut + stop
    streamed = (await ask(client, max_tokens=12, stop=stop, stream=True)).text
    assert streamed.endswith("data: [DONE]\n\n")


async def test_truncate_prompt_tokens_keeps_the_last(client: httpx.AsyncClient) -> None:
    for kept in (1, 3):
        usage = (await answer(client, truncate_prompt_tokens=kept))["usage"]
        assert usage["prompt_tokens"] == kept


@pytest.mark.own_server
async def test_a_tool_is_called_in_either_form(client: httpx.AsyncClient) -> None:
    function = {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    options: dict[str, Any] = {"messages": messages, "max_tokens": 80}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    (choice,) = (await answer(client, **options, **tools))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    functions = {"functions": [function], "function_call": {"name": "get_weather"}}
    (choice,) = (await answer(client, **options, **functions))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["function_call"]["name"] == "get_weather"


@pytest.mark.own_server
async def test_the_words_of_the_template_reach_the_client(client: httpx.AsyncClient) -> None:
    found = await ask(client, messages=[{"role": "tool", "content": "5", "tool_call_id": "c1"}])
    assert found.status_code in (200, 400)  # as the model's template likes it
    assert ("messages" in found.text) is (found.status_code == 400)


async def test_response_format_takes_schemas_without_a_name_and_formats(client: httpx.AsyncClient) -> None:
    person = {
        "type": "object",
        "properties": {"age": {"type": "integer", "maximum": 99}},
        "required": ["age"],
    }
    schema = {"type": "json_schema", "json_schema": person}
    told = {"type": "json_schema", "json_schema": {"schema": person}}
    bye = {"type": "const_string", "value": "\n\nYou're welcome!"}
    for form in (schema, told):
        (choice,) = (await answer(client, response_format=form, max_tokens=60))["choices"]
        assert set(json.loads(choice["message"]["content"])) == {"age"}
    form = {"type": "sequence", "elements": [schema, bye]}
    (choice,) = (await answer(client, response_format=form, max_tokens=90))["choices"]
    text = choice["message"]["content"]
    assert text.endswith(bye["value"])
    assert set(json.loads(text.removesuffix(bye["value"]))) == {"age"}
