"""Whole answers and whole streams: asked for, and looked at from end to end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx

from serve_app.types import UsageRecord
from tests.deploy.deployment import CHAT, COMPLETIONS, EMBEDDINGS, Deployed
from tests.support.invariants import WAIT_S

TOKENS = 8


@dataclass(frozen=True)
class Answer:
    """A complete answer: its id (without prefix), the entity in its header, and its text."""

    id: str
    entity: str
    text: str


def completion(model: str, **fields: Any) -> dict[str, Any]:
    """A body whose answer has exactly TOKENS tokens."""
    fixed = {"prompt": "Once upon a time", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return {"model": model, **fixed, **fields}


async def whole(client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> Answer:
    """The answer to `body` in one piece, which names its entity and is not cut short."""
    response = await client.post(COMPLETIONS, json=body, headers=headers)
    assert response.status_code == 200, response.text
    answer = response.json()
    entity = response.headers["served-model-name"]
    assert answer["model"] == entity
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == body["max_tokens"]
    return Answer(bare(answer["id"]), entity, choice["text"])


async def streamed(client: httpx.AsyncClient, body: dict[str, Any], **headers: str) -> Answer:
    """As `whole`, in events, of which the last says that it is the last."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", COMPLETIONS, json=asked, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        entity = response.headers["served-model-name"]
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert {event["model"] for event in events} == {entity}
    choices = [choice for event in events for choice in event["choices"]]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    assert events[-1]["usage"]["completion_tokens"] == body["max_tokens"]
    return Answer(bare(events[0]["id"]), entity, "".join(choice["text"] for choice in choices))


def bare(public_id: str) -> str:
    """The id as the journal has it."""
    return public_id.rpartition("-")[2]


async def embedded(client: httpx.AsyncClient, model: str) -> str:
    """Embed three texts, of which two say the same. The entity that answered."""
    texts = ["What is the capital of France?", "Tell me the capital city of France.", "Count from 1 to 9."]
    response = await client.post(EMBEDDINGS, json={"model": model, "input": texts})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > len(texts)
    first, like, unlike = (entry["embedding"] for entry in answer["data"])
    assert sum(a * b for a, b in zip(first, like, strict=True)) > 0.5
    assert sum(a * b for a, b in zip(first, unlike, strict=True)) < 0.5
    entity: str = response.headers["served-model-name"]
    assert answer["model"] == entity
    return entity


async def every_endpoint_answers(server: Deployed, names: set[str]) -> None:
    """The promise of a deploy file: its endpoints and adapters are listed, ready, and answer in every way."""
    listed = (await server.client.get("/v1/models")).json()["data"]
    assert {entry["id"] for entry in listed} == names
    assert all(entity["ready"] for entry in listed for entity in entry["served_entities"])
    routes = {CHAT, COMPLETIONS}
    for entry in listed:
        name = entry["id"]
        entities = {entity["name"] for entity in entry["served_entities"]}
        if entry["task"] == "llm/v1/embeddings":
            assert await embedded(server.client, name) in entities
            routes.add(EMBEDDINGS)
            continue
        one = await whole(server.client, completion(name))
        other = await streamed(server.client, completion(name))
        assert {one.entity, other.entity} <= entities
        if one.entity == other.entity:
            assert one.text == other.text
        chat = await server.chat(name, max_tokens=TOKENS)
        assert chat.status_code == 200, chat.text
        assert chat.json()["choices"][0]["message"]["content"]
    records = await settled(server)
    assert {record.endpoint for record in records} == {name.partition(":")[0] for name in names}
    assert {record.outcome for record in records} == {"finished"}
    assert {record.route for record in records} == routes


async def settled(server: Deployed) -> list[UsageRecord]:
    """Wait until nothing runs anywhere; the records of what was admitted, each exactly one."""
    async with asyncio.timeout(WAIT_S):
        while not await server.is_idle():
            await asyncio.sleep(0.1)
    return server.balanced()
