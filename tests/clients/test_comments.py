"""Clients of every protocol with streams, unmodified, on streams that comments keep alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from anthropic import AsyncAnthropic
from huggingface_hub import AsyncInferenceClient
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

from serve_app.config import GatewayConfig
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app, served

PAUSE_S: Final = 0.1
ALIVE_S: Final = 0.02
MODEL: Final = "demo"
MESSAGES: Final[Any] = [{"role": "user", "content": "Hello!"}]


def openai(url: str, base: str = "/v1") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}{base}", api_key="unused", max_retries=0)


async def chat(url: str, base: str = "/v1") -> str:
    stream = await openai(url, base).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def databricks(url: str) -> str:
    return await chat(url, "/serving-endpoints")


async def ovms(url: str) -> str:
    return await chat(url, "/v3")


async def mindie(url: str) -> str:
    return await chat(url, "/mindie/v1")


async def completion(url: str) -> str:
    stream = await openai(url).completions.create(model=MODEL, prompt="Once", stream=True)
    return "".join([chunk.choices[0].text async for chunk in stream])


async def response(url: str) -> str:
    stream = await openai(url).responses.create(model=MODEL, input="Hello!", stream=True)
    return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])


async def message(url: str) -> str:
    client = AsyncAnthropic(base_url=url, api_key="unused", max_retries=0)
    async with client.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=99) as stream:
        return "".join([text async for text in stream.text_stream])


async def langchain(url: str) -> str:
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="unused", model=MODEL, max_retries=0)  # type: ignore[arg-type]
    return "".join([str(chunk.content) async for chunk in model.astream("Hello!")])


async def hugging_face(url: str) -> str:
    client = AsyncInferenceClient(model=url)
    stream = await client.text_generation("Once", stream=True, details=True, max_new_tokens=99)
    return "".join([event.token.text async for event in stream])


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[str]:
    app = fake_app(FakeBackend(pauses={0: PAUSE_S, 3: PAUSE_S}), **settings)
    async with served(app) as (host, port):
        yield f"http://{host}:{port}"


@pytest.mark.parametrize(
    "ask", [chat, databricks, ovms, mindie, completion, response, message, langchain, hugging_face]
)
async def test_a_client_reads_a_stream_with_comments_as_one_without(ask: Callable[[str], Any]) -> None:
    async with server(sse_keepalive_s=0) as plain, server(sse_keepalive_s=ALIVE_S) as kept:
        texts = await asyncio.gather(ask(plain), ask(kept))
    assert texts[0] == texts[1] != ""


def test_streams_are_kept_alive_by_default() -> None:
    assert GatewayConfig().sse_keepalive_s == 15
