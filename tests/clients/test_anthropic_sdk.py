"""Messages through unmodified clients over a socket: the anthropic package, LangChain, pydantic-ai."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import anthropic
import pytest
import pytest_asyncio
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, SecretStr
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from tests.clients.demo_server import demo_server
from tests.conformance.target import DEMO

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

CAPITAL: Final = "What is the capital of France?"
WEATHER: Final = "What is the weather in Paris?"
TOOL: Final[Any] = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
GREEDY: Final[Any] = {"temperature": 0}  # the package has no argument for it


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[str]:
    async with demo_server() as url:
        yield url


# Anthropic's own, by prefix, and Databricks' two.
@pytest.fixture(params=["", "/anthropic", "/serving-endpoints/anthropic", "/ai-gateway/anthropic"])
def url(request: pytest.FixtureRequest, server: str) -> str:
    return f"{server}{request.param}"


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Closed in its own loop: one that is left open closes itself in the loop of another test."""
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def asked(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_a_question_is_answered_and_counted(sdk: anthropic.AsyncAnthropic) -> None:
    message = await sdk.messages.create(
        model=DEMO, max_tokens=50, messages=asked(CAPITAL), system="Be brief.", extra_body=GREEDY
    )
    (block,) = message.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert message.stop_reason == "end_turn"
    counted = await sdk.messages.count_tokens(model=DEMO, messages=asked(CAPITAL), system="Be brief.")
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


async def test_the_streams_helper_puts_the_message_together(sdk: anthropic.AsyncAnthropic) -> None:
    options: Any = {"model": DEMO, "max_tokens": 50, "messages": asked(CAPITAL), "extra_body": GREEDY}
    whole = await sdk.messages.create(**options)
    pieces: list[str] = []
    async with sdk.messages.stream(**options) as stream:
        async for text in stream.text_stream:
            pieces.append(text)
        final = await stream.get_final_message()
    assert len(pieces) > 2
    assert [block.type for block in final.content] == ["text"]
    assert "".join(pieces) == await _text(final) == await _text(whole)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == whole.stop_reason


async def _text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


async def test_a_parsed_message_is_a_value_of_the_model(sdk: anthropic.AsyncAnthropic) -> None:
    parsed = await sdk.messages.parse(
        model=DEMO, max_tokens=80, messages=asked("Anna is 31 years old."), output_format=Person,
        extra_body=GREEDY,
    )  # fmt: skip
    assert isinstance(parsed.parsed_output, Person)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_a_call_and_its_result_are_sent_back_as_blocks(
    sdk: anthropic.AsyncAnthropic, streams: bool
) -> None:
    messages = asked(WEATHER)
    options: Any = {"model": DEMO, "max_tokens": 80, "tools": [TOOL], "extra_body": GREEDY}
    if streams:
        async with sdk.messages.stream(messages=messages, **options) as stream:
            message: Any = await stream.get_final_message()
    else:
        message = await sdk.messages.create(messages=messages, **options)
    (call,) = message.content
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    messages += [
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny in Paris."}],
        },
    ]
    assert "sunny" in await _text(await sdk.messages.create(messages=messages, **options))


async def test_an_answer_goes_on_where_it_was_begun(sdk: anthropic.AsyncAnthropic) -> None:
    begun = [*asked(CAPITAL), {"role": "assistant", "content": "The capital of France"}]
    message = await sdk.messages.create(model=DEMO, max_tokens=50, messages=begun, extra_body=GREEDY)
    assert (await _text(message)).startswith(" is Paris")


async def test_an_error_is_of_the_packages_type(sdk: anthropic.AsyncAnthropic) -> None:
    upload: Any = [{"role": "user", "content": [{"type": "container_upload"}]}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0\.type") as refused:
        await sdk.messages.create(model=DEMO, max_tokens=5, messages=upload)
    assert refused.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        await sdk.messages.create(model="nothing", max_tokens=5, messages=asked(CAPITAL))
    with pytest.raises(anthropic.NotFoundError) as batches:
        await sdk.messages.batches.list()
    assert "no batches" in str(batches.value)


async def test_models_are_listed_page_by_page(sdk: anthropic.AsyncAnthropic) -> None:
    found = [each async for each in sdk.models.list(limit=1)]
    assert [each.id for each in found] == [DEMO]
    assert (await sdk.models.retrieve(DEMO)).max_input_tokens == 512


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"It is sunny in {city}."


async def test_langchain_calls_tools_and_reads_their_results(url: str) -> None:
    chat = ChatAnthropic(
        model=DEMO, base_url=url, api_key=SecretStr("none"), max_retries=0, timeout=60, stop=None,
        max_tokens_to_sample=80, temperature=0,
    )  # fmt: skip
    bound, messages = chat.bind_tools([get_weather]), [HumanMessage(WEATHER)]
    called = await bound.ainvoke(messages)
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert "sunny" in str((await bound.ainvoke([*messages, called, result])).content)
    pieces = [piece async for piece in chat.astream(CAPITAL)]
    assert "Paris" in "".join(str(piece.text) for piece in pieces)


async def test_a_pydantic_ai_agent_calls_tools(url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        provider = AnthropicProvider(anthropic_client=client)
        agent = Agent(
            AnthropicModel(DEMO, provider=provider, settings={"temperature": 0.0, "max_tokens": 80})
        )
        called: list[str] = []

        @agent.tool_plain(name="get_weather")
        def weather(city: str) -> str:
            """Get the weather in a city."""
            called.append(city)
            return f"It is sunny in {city}."

        result = await agent.run(WEATHER)
    assert called == ["Paris"]
    assert "sunny" in result.output
