"""Structured output as the openai package asks for it, against the demo model through the whole stack."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

from tests.support.ray_cluster import Cluster
from tests.support.served import MODEL

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


class Road(BaseModel):
    number: int = Field(ge=1, le=99)


class Place(BaseModel):
    """What the SDK makes a strict schema of."""

    kind: Literal["town", "village"]
    size: int = Field(ge=1, le=99)
    road: Road | None


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(demo_chat: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{demo_chat.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_the_sdk_parses_answers_into_its_models(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL, messages=QUESTION, response_format=Place, max_tokens=300, seed=3
    )
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Place)


async def test_a_stream_of_a_schema_adds_up(client: openai.AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    stream = await client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, temperature=0, max_tokens=60, response_format=form
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    if chunks[-1].choices[0].finish_reason == "stop":
        assert json.loads(text)["n"] <= 9
    assert text.startswith('{"n"')


async def test_guided_fields_of_other_servers(client: openai.AsyncOpenAI) -> None:
    for extra, pattern in (
        ({"guided_regex": "[A-Z]{3}-[0-9]{2}"}, "[A-Z]{3}-[0-9]{2}"),
        ({"guided_choice": ["Rome", "Paris"]}, "Rome|Paris"),
        ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, "a|b"),
    ):
        answer = await client.completions.create(
            model=MODEL, prompt="Say it:", max_tokens=30, seed=1, extra_body=extra
        )
        assert re.fullmatch(pattern, answer.choices[0].text)


async def test_a_schema_that_cannot_be_names_the_field_the_client_used(client: openai.AsyncOpenAI) -> None:
    for extra in ({"guided_json": {"type": "banana"}}, {"guided_regex": "(("}):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=QUESTION, extra_body=extra)
        [field] = extra
        assert caught.value.param == field
        assert field in str(caught.value)
        assert "response_format" not in str(caught.value)
