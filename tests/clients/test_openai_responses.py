"""The Responses API through unmodified clients over a socket: the openai package, LangChain, pydantic-ai."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import openai
import pytest
import pytest_asyncio
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.demo_server import demo_server
from tests.conformance.target import DEMO

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

CAPITAL: Final = "What is the capital of France?"
WEATHER: Final = "What is the weather in Paris?"
TOOL: Final[Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[str]:
    async with demo_server() as url:
        yield url


# OpenAI's, Databricks' two, and OpenVINO Model Server's.
@pytest.fixture(params=["/v1", "/serving-endpoints", "/ai-gateway/mlflow/v1", "/v3"])
def url(request: pytest.FixtureRequest, server: str) -> str:
    return f"{server}{request.param}"


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Closed in its own loop: one that is left open closes itself in the loop of another test."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


async def test_a_question_is_answered_and_counted(sdk: openai.AsyncOpenAI) -> None:
    response = await sdk.responses.create(model=DEMO, input=CAPITAL, temperature=0)
    assert response.status == "completed"
    assert "Paris" in response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


@pytest.mark.parametrize("url", ["/v1"], indirect=True)
async def test_the_input_is_counted_before_it_is_sent(sdk: openai.AsyncOpenAI) -> None:
    counted = await sdk.responses.input_tokens.count(model=DEMO, input=CAPITAL, instructions="Be brief.")
    response = await sdk.responses.create(model=DEMO, input=CAPITAL, instructions="Be brief.")
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


async def test_the_streams_helper_puts_the_response_together(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.responses.create(model=DEMO, input=CAPITAL, temperature=0)
    pieces: list[str] = []
    async with sdk.responses.stream(model=DEMO, input=CAPITAL, temperature=0) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                pieces.append(event.delta)
        final = await stream.get_final_response()
    assert len(pieces) > 2
    assert "".join(pieces) == final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_a_parsed_response_is_a_value_of_the_model(sdk: openai.AsyncOpenAI) -> None:
    asked: Any = {"model": DEMO, "input": "Anna is 31 years old.", "text_format": Person, "temperature": 0}
    assert isinstance((await sdk.responses.parse(**asked)).output_parsed, Person)
    async with sdk.responses.stream(**asked) as stream:
        final = await stream.get_final_response()
    assert isinstance(final.output_parsed, Person)


async def test_a_call_and_its_output_are_sent_back_as_items(sdk: openai.AsyncOpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": WEATHER}]
    response = await sdk.responses.create(model=DEMO, input=asked, tools=[TOOL], temperature=0)
    (call,) = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    asked += response.output
    asked.append({"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny in Paris."})
    final = await sdk.responses.create(model=DEMO, input=asked, tools=[TOOL], temperature=0)
    assert "sunny" in final.output_text


async def test_an_error_is_of_the_packages_type(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.responses.create(model=DEMO, input=CAPITAL, conversation="conv_1")
    assert "conversation" in refused.value.response.text
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(model="nothing", input=CAPITAL)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve("resp_1")


# --- LangChain ---------------------------------------------------------------------------------


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"It is sunny in {city}."


def langchain(url: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url, api_key="unused", model=DEMO, temperature=0, max_retries=0, use_responses_api=True
    )  # type: ignore[call-arg, arg-type]


async def test_langchain_calls_a_tool_and_uses_its_answer(url: str) -> None:
    model = langchain(url).bind_tools([get_weather])
    question = HumanMessage(WEATHER)
    call = await model.ainvoke([question])
    assert [(each["name"], each["args"]) for each in call.tool_calls] == [("get_weather", {"city": "Paris"})]
    result = get_weather.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage)
    answer = await model.ainvoke([question, call, result])
    assert "sunny" in answer.text


async def test_langchains_stream_adds_up(url: str) -> None:
    whole = await langchain(url).ainvoke(CAPITAL)
    total: Any = None
    async for chunk in langchain(url).astream(CAPITAL):
        total = chunk if total is None else total + chunk
    assert whole.usage_metadata is not None
    assert total.text == whole.text
    assert total.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]


# --- pydantic-ai -------------------------------------------------------------------------------


def agent(url: str, **options: Any) -> Agent[None, Any]:
    provider = OpenAIProvider(base_url=url, api_key="unused")
    settings: Any = {"temperature": 0.0, "max_tokens": 200}
    return Agent(OpenAIResponsesModel(DEMO, provider=provider, settings=settings), **options)


async def test_an_agent_calls_its_tool_and_uses_the_answer(url: str) -> None:
    asked: list[str] = []
    weather = agent(url)

    @weather.tool_plain(name="get_weather")
    def weather_of(city: str) -> str:
        """Get the weather in a city."""
        asked.append(city)
        return f"It is sunny in {city}."

    result = await weather.run(WEATHER)
    assert asked == ["Paris"]
    assert "sunny" in result.output


async def test_an_agents_conversation_and_stream(url: str) -> None:
    first = await agent(url).run("My name is Anna.")
    second = await agent(url).run("What is my name?", message_history=first.all_messages())
    assert "Anna" in second.output
    whole = (await agent(url).run(CAPITAL)).output
    async with agent(url).run_stream(CAPITAL) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 2
    assert "".join(pieces) == whole


async def test_an_agents_output_type_is_kept_to(url: str) -> None:
    assert isinstance((await agent(url, output_type=Person).run("Anna is 31 years old.")).output, Person)
