"""The unmodified databricks-sdk package, and its OpenAI client, against the gateway over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.config import Config
from databricks.sdk.errors import (
    BadRequest,
    DeadlineExceeded,
    InternalError,
    InvalidParameterValue,
    NotFound,
    PermissionDenied,
    RequestLimitExceeded,
    Unauthenticated,
)
from databricks.sdk.service.serving import ChatMessage, ChatMessageRole, QueryEndpointResponseObject

from serve_app import errors
from serve_app.accounts.keys import new_key
from serve_app.types import FinishReason, Scope
from tests.conformance.target import DEMO, demo_app
from tests.support.fakes_backend import (
    DIMENSIONS,
    PROMPT_TOKENS,
    WORDS,
    FakeBackend,
    embedder_info,
    model_info,
)
from tests.support.gateway import Gateway, gateway, served

TEXT = "".join(WORDS)
ENTITY = {"model": "demo", "name": "demo-v1"}
ENDPOINTS: list[dict[str, Any]] = [
    {"name": "talk", "served_entities": [ENTITY], "databricks": {"allow_n_everywhere": True}},
    {"name": "text", "task": "llm/v1/completions", "served_entities": [ENTITY]},
    {"name": "embed", "task": "llm/v1/embeddings", "served_entities": [{"model": "embedder"}]},
]
HELLO = [
    ChatMessage(role=ChatMessageRole.SYSTEM, content="Be kind."),
    ChatMessage(role=ChatMessageRole.USER, content="Hello!"),
]
PLAIN: Any = [{"role": "user", "content": "Hello!"}]


def workspace(url: str, token: str = "unused") -> WorkspaceClient:
    # Nothing of the machine's own profiles and variables may count.
    config = Config(host=url, token=token, auth_type="pat", retry_timeout_seconds=1, http_timeout_seconds=20)
    return WorkspaceClient(config=config)


@asynccontextmanager
async def sdk(backend: FakeBackend | None = None, **options: Any) -> AsyncIterator[tuple[Gateway, str]]:
    """(gateway, its URL)"""
    async with (
        gateway(backend, endpoints=ENDPOINTS, **options) as g,
        served(g.app) as (host, port),
    ):
        yield g, f"http://{host}:{port}"


async def query(url: str, name: str, token: str = "unused", **options: Any) -> Any:
    """The SDK blocks, so it has a thread."""
    return await asyncio.to_thread(lambda: workspace(url, token).serving_endpoints.query(name, **options))


async def blocking(work: Callable[[Any], Any], url: str) -> Any:
    """`work` with the client that the SDK makes for OpenAI's protocol."""

    def run() -> Any:
        endpoints: Any = workspace(url).serving_endpoints
        with endpoints.get_open_ai_client(max_retries=0, timeout=20) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_query_chat_with_every_option() -> None:
    async with sdk(FakeBackend(finish=FinishReason.EOS)) as (g, url):
        answer = await query(
            url, "talk", messages=HELLO, max_tokens=7, n=2, stop=["x"], temperature=0.5,
            client_request_id="r-1", usage_context={"team": "sea"}, stream=False,
            extra_params={"top_k": "4", "user": "me"},
        )  # fmt: skip
        asked = g.backend.last
    assert (asked.sampling.max_tokens, asked.sampling.temperature, asked.sampling.top_k) == (7, 0.5, 4)
    assert (asked.n, asked.stop) == (2, ("x",))
    assert asked.prompt.messages == (
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello!"},
    )
    assert answer.object is QueryEndpointResponseObject.CHAT_COMPLETION
    assert (answer.model, answer.served_model_name) == ("demo-v1", "demo-v1")
    assert answer.id.startswith("chatcmpl-")
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role is ChatMessageRole.ASSISTANT
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (PROMPT_TOKENS, 2 * len(WORDS))
    assert answer.usage.total_tokens == PROMPT_TOKENS + 2 * len(WORDS)


async def test_query_without_stream_is_answered_whole() -> None:
    async with sdk() as (g, url):
        answer = await query(url, "talk", messages=HELLO)
        assert answer.choices[0].message.content == TEXT
        assert g.backend.last.stream is False


async def test_more_than_the_whole_limit_ends_at_once_as_a_limit() -> None:
    limited = [{"name": "talk", "limits": {"output_tokens_per_minute": 100}}]
    async with gateway(endpoints=limited) as g, served(g.app) as (host, port):
        url = f"http://{host}:{port}"
        with pytest.raises(RequestLimitExceeded, match="needs 120 output tokens, more than the limit of 100"):
            await query(url, "talk", messages=HELLO, max_tokens=120)
        page = (await g.client.get("/metrics")).text
        (line,) = (each for each in page.splitlines() if 'requests_total{endpoint="talk"' in each)
        assert line.endswith(" 1.0"), "the SDK asked more than once"
        with pytest.raises(openai.BadRequestError, match="more than the limit of 100"):
            await blocking(
                lambda client: client.chat.completions.create(model="talk", messages=PLAIN, max_tokens=120),
                url,
            )


async def test_query_completions() -> None:
    async with sdk() as (g, url):
        answer = await query(
            url, "text", prompt=["a", "b"], max_tokens=3, temperature=0.0,
            extra_params={"use_raw_prompt": "true", "suffix": "!", "echo": "true"},
        )  # fmt: skip
        assert [request.prompt.text for request in g.backend.requests] == ["a", "b"]
    assert answer.object is QueryEndpointResponseObject.TEXT_COMPLETION
    assert [choice.text for choice in answer.choices] == [f"a{TEXT}!", f"b{TEXT}!"]
    assert answer.usage.prompt_tokens == 2 * PROMPT_TOKENS


async def test_query_embeddings() -> None:
    async with sdk(FakeBackend(infos=[embedder_info(), model_info()])) as (_, url):
        answer = await query(url, "embed", input=["quay", "pier"], extra_params={"instruction": "Find:"})
        assert answer.object is QueryEndpointResponseObject.LIST
        assert [(each.index, len(each.embedding)) for each in answer.data] == [
            (0, DIMENSIONS),
            (1, DIMENSIONS),
        ]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2 * PROMPT_TOKENS, None)
        # The package asks for base64 and unpacks it.
        same = await blocking(lambda c: c.embeddings.create(model="embed", input=["quay", "pier"]), url)
    assert [each.embedding for each in same.data] == [
        pytest.approx(each.embedding, rel=1e-6) for each in answer.data
    ]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"temperature": 3.0}, InvalidParameterValue, "temperature"),
        ({"max_tokens": 0}, InvalidParameterValue, "max_tokens"),
        ({"extra_params": {"nonsense": "1"}}, BadRequest, 'json: unknown field "nonsense"'),
        ({"prompt": "x"}, BadRequest, 'json: unknown field "prompt"'),
        ({"messages": HELLO[:1]}, InvalidParameterValue, "messages"),
    ],
)
async def test_bad_input_is_an_exception_of_its_kind(
    options: Any, error: type[Exception], words: str
) -> None:
    async with sdk() as (_, url):
        with pytest.raises(error, match=words):
            await query(url, "talk", **{"messages": HELLO, **options})


async def test_other_errors_have_their_own_exceptions() -> None:
    async with sdk() as (_, url):
        with pytest.raises(NotFound):
            await query(url, "nobody", messages=HELLO)
        with pytest.raises(BadRequest, match="task is llm/v1/completions"):
            await query(url, "text", messages=HELLO)
    for failure, error in (
        (errors.DeadlineExceeded("timeout"), DeadlineExceeded),
        (errors.GenerationFailed("failed"), InternalError),
    ):
        async with sdk(FakeBackend(refuse=failure)) as (_, url):
            with pytest.raises(error, match=failure.message):
                await query(url, "talk", messages=HELLO)


async def test_tokens_are_checked() -> None:
    key, line = new_key("somebody")
    scraper, scraper_line = new_key("scraper", [Scope.METRICS])
    async with sdk(keys=f"{line} {scraper_line}") as (_, url):
        assert (await query(url, "talk", key, messages=HELLO)).choices[0].message.content == TEXT
        with pytest.raises(Unauthenticated):
            await query(url, "talk", "sk-wrong", messages=HELLO)
        with pytest.raises(PermissionDenied):
            await query(url, "talk", scraper, messages=HELLO)


async def test_the_openai_client_chats_whole_and_streamed() -> None:
    async with sdk() as (g, url):
        options: dict[str, Any] = {"model": "talk", "messages": PLAIN, "extra_body": {"top_k": 3}}
        whole = await blocking(lambda client: client.chat.completions.create(**options), url)
        assert (whole.choices[0].message.content, whole.model) == (TEXT, "demo-v1")
        assert g.backend.last.sampling.top_k == 3
        chunks = await blocking(
            lambda client: list(client.chat.completions.create(**options, stream=True)), url
        )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage.total_tokens == PROMPT_TOKENS + len(WORDS)


async def test_the_openai_client_completes_whole_and_streamed() -> None:
    async with sdk() as (_, url):
        options: dict[str, Any] = {"model": "text", "prompt": "Once", "logprobs": 1}
        whole = await blocking(lambda client: client.completions.create(**options), url)
        assert (whole.choices[0].text, whole.choices[0].logprobs.tokens) == (TEXT, list(WORDS))
        chunks = await blocking(lambda client: list(client.completions.create(**options, stream=True)), url)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert chunks[-1].usage == whole.usage


async def test_the_openai_client_raises_what_breaks_a_stream() -> None:
    backend = FakeBackend(fail_after=2, failure=errors.GenerationFailed("the engine failed"))
    async with sdk(backend) as (_, url):
        for create in (
            lambda client: list(client.chat.completions.create(model="talk", messages=PLAIN, stream=True)),
            lambda client: list(client.completions.create(model="text", prompt="x", stream=True)),
        ):
            with pytest.raises(openai.APIError, match="the engine failed"):
                await blocking(create, url)


async def test_the_openai_client_has_its_own_exceptions() -> None:
    async with sdk() as (_, url):
        with pytest.raises(openai.BadRequestError, match="top_p"):
            await blocking(lambda c: c.chat.completions.create(model="talk", messages=PLAIN, top_p=2), url)
        with pytest.raises(openai.NotFoundError):
            await blocking(lambda c: c.chat.completions.create(model="nobody", messages=PLAIN), url)


async def test_a_real_model_answers_both() -> None:
    endpoints = [{"name": "talk", "served_entities": [{"model": DEMO}]}]
    async with demo_app(endpoints) as app, served(app) as (host, port):
        url = f"http://{host}:{port}"
        answer = await query(url, "talk", messages=HELLO, max_tokens=12, temperature=0.0)
        chunks = await blocking(
            lambda client: list(
                client.chat.completions.create(
                    model="talk",
                    messages=[message.as_dict() for message in HELLO],
                    max_tokens=12,
                    temperature=0,
                    stream=True,
                )
            ),
            url,
        )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert answer.choices[0].message.content == streamed
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens
    assert answer.served_model_name == DEMO
