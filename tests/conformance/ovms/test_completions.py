"""POST /v3/completions: raw prompts under the same rules, and the pages of models."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.conformance import conftest
from tests.conformance.fields import Bounds, accepted, refused
from tests.conformance.ovms.test_fields import BOUNDS as OF_CHAT
from tests.support.fakes_backend import WORDS
from tests.support.gateway import completion_body, events, gateway

module_loop = pytest.mark.asyncio(loop_scope="module")

PATH = "/v3/completions"
VARIED = {"temperature": 2, "max_tokens": 24}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": conftest.MODEL, "prompt": "The sea is", "max_tokens": 4, **fields}


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(PATH, json=body(**fields))


async def choices(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await ask(client, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


BOUNDS: Bounds = {
    "prompt": (["x", [1, 2], ["x"], [[1, 2]]], [None, [], "", [""], ["a", "b"], [[1], [2]], 5, [-1]]),
    "echo": ([True, False, None], []),
    "max_tokens": ([1, 5], [0]),
    "model": ([], [None, ""]),
}
OF_CHAT_ALONE = (
    *("messages", "tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"),
    "chat_template_kwargs",
)
SHARED: Bounds = {
    field: bounds for field, bounds in OF_CHAT.items() if field not in OF_CHAT_ALONE and field not in BOUNDS
}


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(SHARED))
async def test_a_field_of_chat_is_accepted_inside_the_same_bounds(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    answer = await ask(client, **{field: value})
    assert answer.status_code == 200, answer.text


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(SHARED))
async def test_a_field_of_chat_is_refused_outside_of_them(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    answer = await ask(client, **{field: value})
    assert answer.status_code == 400
    assert field in answer.json()["error"]


@module_loop
async def test_max_completion_tokens_is_max_tokens_and_n_is_up_to_best_of(client: httpx.AsyncClient) -> None:
    assert (await ask(client, max_tokens=None, max_completion_tokens=1)).status_code == 200
    assert (await ask(client, max_tokens=None, max_completion_tokens=0)).status_code == 400
    assert (await ask(client, max_completion_tokens=9)).status_code == 400  # not that of max_tokens
    assert len(await choices(client, n=2, best_of=2)) == 2
    assert (await ask(client, n=2)).status_code == 400


@module_loop
@pytest.mark.parametrize(("field", "value"), accepted(BOUNDS))
async def test_what_is_inside_its_bounds_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    answer = await ask(client, **{field: value})
    assert answer.status_code == 200, answer.text


@module_loop
@pytest.mark.parametrize(("field", "value"), refused(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    answer = await ask(client, **{field: value})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert field in answer.json()["error"]


@module_loop
async def test_max_tokens_of_zero_echoes_the_prompt_alone(client: httpx.AsyncClient) -> None:
    (choice,) = await choices(client, max_tokens=0, echo=True, logprobs=1)
    assert (choice["text"], choice["finish_reason"]) == ("The sea is", "length")
    assert "".join(choice["logprobs"]["tokens"]) == "The sea is"


async def test_the_bytes_of_a_stream() -> None:
    async with gateway() as g:
        found = await g.post(PATH, completion_body(stream=True))
    match = re.search(r'"created":(\d+),.*"id":"(cmpl-[0-9a-f]{32})"', found.text)
    assert match is not None
    tail = f'],"created":{match[1]},"model":"demo","object":"text_completion","id":"{match[2]}"}}\n\n'
    quoted = ['"Grüße"', '" aus"', r'" \"Köln\""', '" 😀"', r'"\n"', '"end"']
    ends = ["null"] * (len(WORDS) - 1) + ['"length"']
    expected = "".join(
        f'data: {{"choices":[{{"finish_reason":{end},"index":0,"logprobs":null,"text":{text}}}{tail}'
        for text, end in zip(quoted, ends, strict=True)
    )
    assert found.content == (expected + "data: [DONE]\n\n").encode()


@module_loop
async def test_a_whole_answer_has_its_members_in_order(client: httpx.AsyncClient) -> None:
    found = (await ask(client)).json()
    assert list(found) == ["choices", "created", "model", "object", "id", "usage", "system_fingerprint"]
    assert list(found["choices"][0]) == ["finish_reason", "index", "logprobs", "text"]
    assert found["object"] == "text_completion"


@module_loop
async def test_a_prompt_is_raw_and_may_be_echoed(client: httpx.AsyncClient) -> None:
    (plain,) = await choices(client)
    (echoed,) = await choices(client, echo=True)
    assert echoed["text"] == "The sea is" + plain["text"]
    streamed = events((await ask(client, echo=True, stream=True)).text)
    assert "".join(event["choices"][0]["text"] for event in streamed) == echoed["text"]


@module_loop
async def test_log_probabilities_are_four_lists(client: httpx.AsyncClient) -> None:
    (choice,) = await choices(client, logprobs=2)
    assert list(choice["logprobs"]) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
    assert len({len(each) for each in choice["logprobs"].values()}) == 1


@module_loop
async def test_the_same_seed_gives_the_same_text_alone_and_among_others(client: httpx.AsyncClient) -> None:
    alone = await choices(client, **VARIED, seed=9)
    together = await asyncio.gather(*(choices(client, **VARIED, seed=9) for _ in range(8)))
    assert all(found == alone for found in together)


@module_loop
async def test_beams_and_samples(client: httpx.AsyncClient) -> None:
    assert len(await choices(client, best_of=3, n=2)) == 2
    assert len(await choices(client, best_of=3, n=3, temperature=1)) == 3


@module_loop
@pytest.mark.parametrize("base", ["/v3", "/v3/v1"])
async def test_the_pages_of_models(client: httpx.AsyncClient, base: str) -> None:
    listed = (await client.get(f"{base}/models")).json()
    assert listed["object"] == "list"
    (own,) = [entry for entry in listed["data"] if entry["id"] == conftest.MODEL]
    assert (await client.get(f"{base}/models/{conftest.MODEL}")).json() == own
    assert own["object"] == "model"
