"""pydantic-ai's OpenAI model and embedder, unmodified, against the gateway over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.messages import ModelMessage, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.demo_server import demo_server
from tests.conformance.target import DEMO

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

CAPITAL = "What is the capital of France?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with demo_server() as url:
        yield url


def model(url: str, name: str = DEMO) -> OpenAIChatModel:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="unused")
    return OpenAIChatModel(name, provider=provider, settings={"temperature": 0.0, "max_tokens": 200})


async def test_an_agent_answers_and_counts(url: str) -> None:
    result = await Agent(model(url)).run(CAPITAL)
    assert "Paris" in result.output
    assert result.usage.input_tokens > 0
    assert result.usage.output_tokens > 0


async def test_a_stream_is_the_whole_answer(url: str) -> None:
    whole = (await Agent(model(url)).run(CAPITAL)).output
    async with Agent(model(url)).run_stream(CAPITAL) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 2
    assert "".join(pieces) == whole


async def test_a_conversation_is_remembered(url: str) -> None:
    agent = Agent(model(url))
    first = await agent.run("My name is Anna.")
    second = await agent.run("What is my name?", message_history=first.all_messages())
    assert "Anna" in second.output


async def test_an_agent_calls_its_tool_and_uses_the_answer(url: str) -> None:
    agent = Agent(model(url))
    asked: list[str] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather in a city."""
        asked.append(city)
        return f"It is sunny in {city}."

    result = await agent.run("What is the weather in Paris?")
    assert asked == ["Paris"]
    assert "sunny" in result.output
    assert [call.tool_name for call in calls(result.all_messages())] == ["get_weather"]


def calls(messages: list[ModelMessage]) -> list[ToolCallPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]


class Person(BaseModel):
    name: str
    age: int


async def test_an_output_type_is_kept_to(url: str) -> None:
    result = await Agent(model(url), output_type=Person).run("Anna is 31 years old.")
    assert isinstance(result.output, Person)


async def test_an_unknown_model_is_the_clients_own_error(url: str) -> None:
    with pytest.raises(ModelHTTPError) as refused:
        await Agent(model(url, "nothing")).run(CAPITAL)
    assert refused.value.status_code == 404
