"""Generate with a real model: what only an engine can show."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.conformance.conftest import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = f"/v2/models/{MODEL}"
VARIED = {"do_sample": True, "temperature": 3, "max_new_tokens": 24}


async def stream(client: httpx.AsyncClient, **parameters: Any) -> list[Any]:
    answer = await client.post(f"{PATH}/generate_stream", json=body(**parameters))
    assert answer.status_code == 200, answer.text
    return [json.loads(part.removeprefix("data:")) for part in answer.text.split("\n\n")[:-1]]


async def text(client: httpx.AsyncClient, **parameters: Any) -> str:
    answer = await client.post(f"{PATH}/generate", json=body(**parameters))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text_output"])


def body(**parameters: Any) -> dict[str, Any]:
    return {"text_input": "Hello, my name is", "parameters": parameters}


async def test_the_same_seed_gives_the_same_text_alone_and_among_others(client: httpx.AsyncClient) -> None:
    alone = [await text(client, seed=77, **VARIED) for _ in range(2)]
    together = await asyncio.gather(
        *(text(client, seed=77, batch_size=4, **VARIED) for _ in range(8)),
        *(text(client, seed=seed, **VARIED) for seed in range(1, 9)),
    )
    assert set(alone) | set(together[:8]) == {alone[0]}
    assert len(set(together)) > 1


async def test_every_token_has_an_event_with_its_step(client: httpx.AsyncClient) -> None:
    found = await stream(client, seed=5, details=True, perf_stat=True, **VARIED)
    details = [event["details"] for event in found]
    assert [each["generated_tokens"] for each in details] == list(range(1, len(found) + 1))
    assert len(found) <= VARIED["max_new_tokens"]
    assert all(each["batch_size"] >= 1 for each in details)
    assert all(type(each["queue_wait_time"]) is int and each["queue_wait_time"] >= 0 for each in details)
    assert all(len(each["perf_stat"]) == each["generated_tokens"] for each in details)
    assert details[0]["decode_cost"] is None
    assert all(type(each["decode_cost"]) is int for each in details[1:])
    assert {each["first_token_cost"] for each in details} == {details[0]["first_token_cost"]}


async def test_steps_that_are_shared_say_so(client: httpx.AsyncClient) -> None:
    many = await asyncio.gather(*(stream(client, seed=s, details=True, **VARIED) for s in range(1, 9)))
    assert max(event["details"]["batch_size"] for events in many for event in events) > 1


async def test_a_stream_has_the_text_of_a_whole_answer_and_the_end_token(client: httpx.AsyncClient) -> None:
    parameters = {"details": True, "max_new_tokens": 400}
    found = await stream(client, **parameters)
    assert found[-1]["details"]["finish_reason"] == "eos_token"
    whole = await text(client, **parameters)
    streamed = "".join(event["text_output"] for event in found)
    end = streamed.removeprefix(whole)
    assert streamed.startswith(whole)
    assert end.startswith("<")  # the text of a special token
    assert found[-1]["text_output"].endswith(end)


async def test_characters_of_several_tokens_come_whole_and_every_token_counts(
    client: httpx.AsyncClient,
) -> None:
    found = await stream(client, details=True, seed=9, do_sample=True, temperature=1e6, max_new_tokens=120)
    assert [event["details"]["generated_tokens"] for event in found] == list(range(1, len(found) + 1))
    assert "" in [event["text_output"] for event in found]  # noise has parts of characters


async def test_a_watermark_changes_an_answer_that_stays_reproducible(client: httpx.AsyncClient) -> None:
    plain = await text(client, seed=11, **VARIED)
    marked = {await text(client, seed=11, watermark=True, **VARIED) for _ in range(2)}
    assert len(marked) == 1
    assert plain not in marked


async def test_typical_sampling_narrows_the_choice(client: httpx.AsyncClient) -> None:
    seeds = range(1, 9)
    wide = {await text(client, seed=s, **VARIED) for s in seeds}
    narrow = {await text(client, seed=s, typical_p=0.0001, **VARIED) for s in seeds}
    assert len(narrow) == 1 < len(wide)


async def test_an_id_stops_a_running_stream(client: httpx.AsyncClient) -> None:
    running = {**body(max_new_tokens=480, details=True, do_sample=True, temperature=1e6), "id": "long"}
    task = asyncio.ensure_future(client.post(f"{PATH}/generate_stream", json=running))
    async with asyncio.timeout(60):
        while (await client.post(f"{PATH}/stopInfer", json={"id": "long"})).status_code == 404:
            await asyncio.sleep(0.001)
    found = [json.loads(part.removeprefix("data:")) for part in (await task).text.split("\n\n")[:-1]]
    assert found[-1]["details"]["finish_reason"] == "stop_sequence"
    assert found[-1]["details"]["generated_tokens"] < 480
