"""LangChain's ChatOpenAI and OpenAIEmbeddings, unmodified, against the gateway over a real socket."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.clients.demo_server import EMBED, demo_server
from tests.conformance.target import DEMO

CAPITAL = [SystemMessage("You are a helpful assistant."), HumanMessage("What is the capital of France?")]


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"It is sunny in {city}."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with demo_server() as url:
        yield url


def chat(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{url}/v1", api_key="unused", model=DEMO, temperature=0, max_retries=0, **options
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_a_chat_is_answered_and_counted(url: str) -> None:
    answer = await chat(url).ainvoke(CAPITAL)
    assert "Paris" in str(answer.content)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["total_tokens"] == (
        answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]
    )
    assert answer.response_metadata["finish_reason"] == "stop"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stream_adds_up_to_the_whole_answer(url: str) -> None:
    whole = await chat(url).ainvoke(CAPITAL)
    chunks = [chunk async for chunk in chat(url, stream_usage=True).astream(CAPITAL)]
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    assert len(chunks) > 2
    assert isinstance(total, AIMessageChunk)
    assert total.content == whole.content
    assert total.usage_metadata is not None
    assert whole.usage_metadata is not None
    assert total.usage_metadata["total_tokens"] == whole.usage_metadata["total_tokens"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_batch_is_answered_in_order(url: str) -> None:
    questions = [[HumanMessage(f"What is the capital of {name}?")] for name in ("France", "Japan", "Italy")]
    answers = await chat(url).abatch(questions)
    assert [city in str(a.content) for city, a in zip(("Paris", "Tokyo", "Rome"), answers, strict=True)] == [
        True
    ] * 3


@pytest.mark.asyncio(loop_scope="module")
async def test_a_bound_tool_is_called_and_its_answer_used(url: str) -> None:
    model = chat(url).bind_tools([get_weather])
    question = HumanMessage("What is the weather in Paris?")
    call = await model.ainvoke([question])
    assert [(c["name"], c["args"]) for c in call.tool_calls] == [("get_weather", {"city": "Paris"})]
    result = get_weather.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage)
    answer = await model.ainvoke([question, call, result])
    assert not answer.tool_calls
    assert "sunny" in str(answer.content)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_streamed_tool_call_is_put_together(url: str) -> None:
    total: Any = None
    async for chunk in chat(url).bind_tools([get_weather]).astream("What is the weather in Paris?"):
        total = chunk if total is None else total + chunk
    assert [(c["name"], c["args"]) for c in total.tool_calls] == [("get_weather", {"city": "Paris"})]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.asyncio(loop_scope="module")
async def test_structured_output_is_a_value_of_the_model(url: str, method: Any) -> None:
    structured = chat(url, max_tokens=200).with_structured_output(Person, method=method)
    assert isinstance(await structured.ainvoke("Anna is 31 years old."), Person)


@pytest.mark.asyncio(loop_scope="module")
async def test_log_probabilities_are_there(url: str) -> None:
    answer = await chat(url).bind(logprobs=True, top_logprobs=2).ainvoke(CAPITAL)
    content = answer.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content).startswith(str(answer.content))
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_prompt_that_is_too_long_is_an_overflow_of_the_context(url: str, stream: bool) -> None:
    long = [HumanMessage("What is the capital of France? " * 100)]
    asked = anext(chat(url).astream(long)) if stream else chat(url).ainvoke(long)
    with pytest.raises(ContextOverflowError, match="maximum context length is 512 tokens"):
        await asked


@pytest.mark.asyncio(loop_scope="module")
async def test_a_response_that_is_too_long_is_an_overflow_too(url: str) -> None:
    with pytest.raises(ContextOverflowError, match="maximum context length is 512 tokens"):
        await chat(url, use_responses_api=True).ainvoke("What is the capital of France? " * 100)


async def test_embeddings_rank_what_is_meant_alike() -> None:
    async with demo_server(EMBED) as url:
        # Otherwise LangChain cuts texts with the tokenizer of a model of OpenAI's, and sends its ids.
        embeddings = OpenAIEmbeddings(  # type: ignore[call-arg]  # by their aliases
            base_url=f"{url}/v1", api_key="unused", model=EMBED, check_embedding_ctx_length=False
        )
        texts = ["What is the capital of France?", "What is two plus three?"]
        first, second = await embeddings.aembed_documents(texts)
        query = await embeddings.aembed_query("Tell me the capital of France.")
    assert cosine(query, first) > cosine(query, second)


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))
