"""Unmodified clients behind HAProxy, where one of two gateways ends with every request in its hands.

What the clients do is what docs/failures.md says of them.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
import numpy as np
import openai
import pytest
import tritonclient.http as triton
from databricks.sdk import WorkspaceClient
from databricks.sdk.config import Config
from databricks.sdk.service.serving import ChatMessage, ChatMessageRole
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from tritonclient.utils import InferenceServerException

from tests.support.fakes_backend import WORDS
from tests.support.gateway import CHAT, chat_body, gateway, served
from tests.support.haproxy import WAIT_S, Replica, front, replica

TEXT: Final = "".join(WORDS)
SHORT: Final = "Hello!"
LONG: Final = "Hello! " * 3_000  # HAProxy does not hold it
TIMES: Final = 4  # in turns with the other gateway: half of them meet the one that ends


class Front:
    """HAProxy before a gateway that works and one that does not."""

    def __init__(self, url: str, bad: Replica) -> None:
        self.url = url
        self.bad = bad

    def times(self, ask: Callable[[], Any], count: int = TIMES) -> list[Any]:
        """What `ask` gives each time, or what it raises."""
        self.bad.asked.clear()
        found = []
        for _ in range(count):
            try:
                found.append(ask())
            except Exception as error:
                found.append(error)
        assert self.bad.asked, "no request met the gateway that ends"
        return found


@pytest.fixture
def server() -> Iterator[Front]:
    with replica() as bad, working() as port, front(servers=[bad.port, port]) as before:
        bad.dies = True
        yield Front(before.url, bad)


@contextmanager
def working() -> Iterator[int]:
    """The port of a gateway on a thread of its own: the clients here block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    ends, port = asyncio.Event(), queue.Queue[int]()

    async def serve() -> None:
        async with gateway() as good, served(checked(good.app)) as (_, number):  # type: ignore[arg-type]
            port.put_nowait(number)
            await ends.wait()

    task = asyncio.run_coroutine_threadsafe(serve(), loop)
    try:
        yield port.get(timeout=WAIT_S)
    finally:
        loop.call_soon_threadsafe(ends.set)
        task.result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


def checked(app: ASGIApp) -> ASGIApp:
    """`app` with the page that HAProxy looks at, which is Serve's own."""

    async def with_page(scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = Response() if scope["path"] == "/-/healthz" else app
        await answer(scope, receive, send)

    return with_page


def by_openai(server: Front, text: str, retries: int) -> Callable[[], str | None]:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=retries, timeout=20)
    body: Any = chat_body(messages=[{"role": "user", "content": text}])
    return lambda: client.chat.completions.create(**body).choices[0].message.content


def by_databricks(server: Front, text: str, timeout_s: int = 30) -> Callable[[], str | None]:
    config = Config(
        host=server.url,
        token="unused",
        auth_type="pat",
        retry_timeout_seconds=timeout_s,
        http_timeout_seconds=20,
    )
    client = WorkspaceClient(config=config)
    messages = [ChatMessage(role=ChatMessageRole.USER, content=text)]

    def ask() -> str | None:
        choices = client.serving_endpoints.query("demo", messages=messages).choices
        assert choices is not None
        assert choices[0].message is not None
        return choices[0].message.content

    return ask


def by_triton(server: Front, length: int) -> Callable[[], bool]:
    client = triton.InferenceServerClient(server.url.removeprefix("http://"), network_timeout=20)
    ids, most = (
        triton.InferInput("input_ids", [1, length], "INT32"),
        triton.InferInput("request_output_len", [1, 1], "INT32"),
    )
    ids.set_data_from_numpy(np.full((1, length), 3, np.int32))
    most.set_data_from_numpy(np.full((1, 1), 3, np.int32))
    return lambda: client.infer("demo", [ids, most]).as_numpy("output_ids") is not None


def by_httpx(server: Front, text: str) -> Callable[[], int]:
    body = chat_body(messages=[{"role": "user", "content": text}])
    client = httpx.Client(base_url=server.url, timeout=20)
    return lambda: client.post(CHAT, json=body).status_code


def test_no_client_notices_a_gateway_that_ends_before_it_answers(server: Front) -> None:
    """Without a repetition of their own."""
    assert server.times(by_openai(server, SHORT, 0)) == [TEXT] * TIMES
    assert server.times(by_databricks(server, SHORT, 1)) == [TEXT] * TIMES
    assert server.times(by_triton(server, 7)) == [True] * TIMES
    assert server.times(by_httpx(server, SHORT)) == [200] * TIMES


@pytest.mark.full
def test_clients_that_know_retry_after_come_back_with_what_haproxy_does_not_hold(server: Front) -> None:
    assert server.times(by_openai(server, LONG, 2), 2) == [TEXT] * 2
    assert server.times(by_databricks(server, LONG), 2) == [TEXT] * 2


@pytest.mark.full
def test_clients_that_do_not_come_back_are_told_what_it_was(server: Front) -> None:
    whole, lost = split(server.times(by_openai(server, LONG, 0)))
    assert whole == [TEXT] * len(whole)
    assert lost
    for error in lost:
        assert isinstance(error, openai.InternalServerError)
        assert (error.status_code, error.code) == (503, "service_unavailable")
        assert error.response.headers["retry-after"] == "2"
    whole, lost = split(server.times(by_triton(server, 5_000)))
    assert lost
    for error in lost:
        assert isinstance(error, InferenceServerException)
        assert error.status() == "503"
        assert "the gateway ended before it answered" in str(error.message())
    assert sorted(server.times(by_httpx(server, LONG))) == [200, 200, 503, 503]


@pytest.mark.full
def test_a_stream_that_is_cut_raises_and_is_not_begun_again(server: Front) -> None:
    server.bad.dies, server.bad.breaks = False, True
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=2, timeout=20)
    body: Any = chat_body(stream=True)

    def read() -> str:
        text = ""
        try:
            for event in client.chat.completions.create(**body):
                text += event.choices[0].delta.content or "" if event.choices else ""
        except openai.APIConnectionError as error:
            return f"{text}: {error}"
        return text

    assert sorted(set(server.times(read))) == sorted({TEXT, "one: Connection error."})


def split(found: list[Any]) -> tuple[list[Any], list[Exception]]:
    return [x for x in found if not isinstance(x, Exception)], [x for x in found if isinstance(x, Exception)]
