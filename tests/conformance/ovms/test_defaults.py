"""What an absent field means: the same as its default, and not the same as something else."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conformance.fields import by_name
from tests.conformance.ovms.asks import PATH, VARIED, answer, ask, body, text

pytestmark = pytest.mark.asyncio(loop_scope="module")

GREEDY = {"temperature": 0, "max_tokens": 60}

# field -> (its default, another value, what else must be said for it to matter)
DEFAULTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "temperature": (0.0, 2, {}),
    "seed": (0, 1, {}),
    "top_p": (1.0, 0.01, {}),
    "top_k": (0, 1, {}),
    "min_p": (0, 1, {}),
    "repetition_penalty": (1.0, 5, {}),
    "presence_penalty": (0, 2, {}),
    "frequency_penalty": (0, 2, {}),
    "min_tokens": (0, 60, GREEDY),
    "ignore_eos": (False, True, GREEDY),
    "stop": ([], ["e"], {}),
    "stop_token_ids": ([], list(range(100)), {}),
    "logit_bias": ({}, {str(token): -100 for token in range(300)}, {}),
    "include_stop_str_in_output": (False, True, {"stop": ["e", "a"]}),
    "skip_special_tokens": (True, False, {**GREEDY, "ignore_eos": True}),
    "detokenize": (True, False, {}),
    "response_format": ({"type": "text"}, {"type": "json_object"}, {}),
    "truncate_prompt_tokens": (None, 1, {}),
}


@pytest.mark.own_server  # which differences another model shows nobody knows
@pytest.mark.parametrize(("field", "default", "other", "beside"), by_name(DEFAULTS))
async def test_absent_is_the_default(
    client: httpx.AsyncClient, field: str, default: Any, other: Any, beside: dict[str, Any]
) -> None:
    absent = {key: value for key, value in {**VARIED, **beside}.items() if key != field}
    plain = await text(client, **absent)
    assert await text(client, **{**absent, field: default}) == plain
    assert await text(client, **{**absent, field: other}) != plain


@pytest.mark.own_server
async def test_max_tokens_are_those_that_fit(client: httpx.AsyncClient) -> None:
    without = {key: value for key, value in body(ignore_eos=True).items() if key != "max_tokens"}
    found = (await client.post(PATH, json=without)).json()
    window = (await client.get(f"/v3/models/{without['model']}")).json()["max_model_len"]
    assert found["usage"]["total_tokens"] == window  # which is less than 4000


async def test_greedy_is_the_default(client: httpx.AsyncClient) -> None:
    plain = await text(client, max_tokens=8)
    assert plain == await text(client, max_tokens=8, temperature=0, seed=5)


async def test_a_seed_is_there_without_being_asked_for(client: httpx.AsyncClient) -> None:
    assert (
        await text(client, **VARIED) == await text(client, **VARIED) == await text(client, **VARIED, seed=0)
    )


async def test_stream_n_logprobs_and_prompt_logprobs_are_off(client: httpx.AsyncClient) -> None:
    assert (await ask(client)).headers["content-type"] == "application/json"
    found = await answer(client)
    assert "prompt_logprobs" not in found
    (choice,) = found["choices"]
    assert choice["logprobs"] is None
    assert "token_ids" not in choice


async def test_include_usage_is_off(client: httpx.AsyncClient) -> None:
    assert '"usage"' not in (await ask(client, stream=True)).text


async def test_length_penalty_diversity_penalty_groups_and_early_stopping(client: httpx.AsyncClient) -> None:
    beams = {"best_of": 4, "n": 4, "max_tokens": 12}
    plain = (await answer(client, **beams))["choices"]
    said = await answer(
        client, **beams, length_penalty=1.0, diversity_penalty=1.0, num_beam_groups=1, early_stopping=False,
        use_beam_search=False,
    )  # fmt: skip
    assert said["choices"] == plain
