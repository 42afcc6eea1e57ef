"""The chat task asked of any server, over an endpoint named as its model: bounds, bytes, sameness."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import httpx
import pytest

from tests.conformance import conftest
from tests.conformance.databricks.asks import refused
from tests.conformance.databricks.test_databricks_chat_fields import BOUNDS
from tests.conformance.fields import accepted
from tests.conformance.fields import refused as outside
from tests.support.gateway import events

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES: Final = [{"role": "user", "content": "Tell me!"}]
VARIED: Final = {"temperature": 2, "max_tokens": 24, "seed": 9}  # the demo model is sure of itself
OF_THE_MODEL: Final = ("max_tokens",)  # up to its window

INSIDE = accepted({field: bounds for field, bounds in BOUNDS.items() if field not in OF_THE_MODEL})


def path() -> str:
    return f"/serving-endpoints/{conftest.MODEL}/invocations"


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post(path(), json={"messages": MESSAGES, "max_tokens": 2, **fields})


async def text(client: httpx.AsyncClient, **fields: Any) -> str:
    found = await ask(client, **fields)
    assert found.status_code == 200, found.text
    return str(found.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize(("field", "value"), INSIDE)
async def test_what_is_inside_its_range_is_accepted(
    client: httpx.AsyncClient, field: str, value: Any
) -> None:
    beside = {"max_tokens": None} if field == "max_completion_tokens" else {}
    found = await ask(client, **{**beside, field: value})
    assert found.status_code == 200, found.text


@pytest.mark.parametrize(("field", "value"), outside(BOUNDS))
async def test_what_is_outside_is_refused_by_name(client: httpx.AsyncClient, field: str, value: Any) -> None:
    refused(await ask(client, **{field: value}), field)


async def test_unknown_fields_are_refused_unless_null(client: httpx.AsyncClient) -> None:
    refused(await ask(client, nonsense=1), "nonsense")
    assert (await ask(client, nonsense=None)).status_code == 200


async def test_the_same_seed_gives_the_same_text_alone_and_among_others(client: httpx.AsyncClient) -> None:
    alone = [await text(client, **VARIED) for _ in range(2)]
    together = await asyncio.gather(
        *(text(client, **VARIED) for _ in range(8)),
        *(text(client, **{**VARIED, "seed": seed}) for seed in range(11, 19)),
    )
    assert set(alone) | set(together[:8]) == {alone[0]}
    assert len(set(together)) > 1


async def test_a_stream_keeps_to_the_framing_and_has_the_text_of_a_whole_answer(
    client: httpx.AsyncClient,
) -> None:
    found = await ask(client, **VARIED, stream=True)
    assert found.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert re.fullmatch(rb"(?:data: \{[^\n]+\}\n\n)+data: \[DONE\]\n\n", found.content)
    choices = [choice for event in events(found.text) for choice in event["choices"]]
    assert choices[-1]["delta"] == {}
    streamed = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert streamed == await text(client, **VARIED)
