"""What a client of Serve's own proxy is told, with an app in the proxy's place that gives up as it does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from ray.serve._private.http_util import configure_http_middlewares, convert_object_to_asgi_messages
from ray.serve.config import HTTPOptions
from starlette.types import Message, Receive, Scope, Send

from serve_app.api.error_renderers import render_error
from serve_app.api.protocol.family import HEADER, Family
from serve_app.deployments.proxy import middleware
from serve_app.deployments.proxy.answers import LOST, MISSING, STARTING, UNREADY, UNSURE
from serve_app.deployments.proxy.middleware import OwnWords
from serve_app.deployments.proxy.repeats import MAX_BYTES, REPEATS
from serve_app.errors import ServeError, Unavailable

App = Callable[[Scope, Receive, Send], Any]


def answering(*messages: Message, routes: object = None) -> App:
    """A proxy that sends `messages`, and `routes` on its page of them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        said = convert_object_to_asgi_messages(routes or {}) if scope["path"] == "/-/routes" else messages
        for message in said:
            await send(message)

    return app


def text(status: int, **headers: str) -> list[Message]:
    """As Serve tells that something is wrong."""
    extra = [(name.encode(), value.encode()) for name, value in headers.items()]
    return convert_object_to_asgi_messages("Path not found", status_code=status, extra_headers=extra)


async def asked(
    app: App, path: str = "/v1/models", v1: Family = Family.OPENAI, word: str = ""
) -> httpx.Response:
    transport = httpx.ASGITransport(OwnWords(app, v1))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        return await client.get(path, headers={HEADER: word} if word else {})


def check(answer: httpx.Response, error: ServeError, family: Family = Family.OPENAI) -> None:
    expected = render_error(family, error)
    assert (answer.status_code, answer.text) == (expected.status, expected.body.decode())
    assert {name: answer.headers.get(name) for name in expected.headers} == expected.headers


@pytest.mark.parametrize("path", ["/-/routes", "/-/ROUTES"])
async def test_nobody_is_told_the_applications(path: str) -> None:
    check(await asked(answering(*text(200), routes={"/": "system"}), path), MISSING)


@pytest.mark.parametrize(
    ("path", "v1", "word", "family"),
    [
        ("/v1/chat/completions", Family.OPENAI, "", Family.OPENAI),
        ("/v1/chat/completions", Family.MINDIE, "", Family.MINDIE),
        ("/v3/chat/completions", Family.OPENAI, "", Family.OVMS),
        ("/mindie/v1/chat/completions", Family.OPENAI, "", Family.MINDIE),
        ("/v2/models/a/infer", Family.OPENAI, "", Family.TRITON),
        ("/serving-endpoints/a/invocations", Family.OPENAI, "", Family.DATABRICKS),
        ("/v1/models", Family.OPENAI, "mindie", Family.MINDIE),
        ("/v3/models", Family.OPENAI, "none", Family.OVMS),
    ],
)
async def test_a_gateway_that_ended_without_an_answer_is_told_in_the_protocols_words(
    path: str, v1: Family, word: str, family: Family
) -> None:
    check(await asked(answering(), path, v1, word), LOST, family)


@pytest.mark.parametrize(
    ("messages", "routes", "error"),
    [
        (text(404), {}, STARTING),
        (text(404), {"/a": "system"}, MISSING),
        (text(503), {}, UNREADY),
        (text(503, **{"retry-after": "7"}), {}, Unavailable(UNREADY.message, retry_after_s=7)),
        (text(408), {}, middleware._LATE),
    ],
    ids=["start", "no route", "no gateway", "full", "late"],
)
async def test_what_serve_says_in_plain_text_is_said_in_the_protocols_words(
    messages: list[Message], routes: object, error: ServeError
) -> None:
    check(await asked(answering(*messages, routes=routes)), error)


class Dying:
    """A proxy whose gateways end, so many of them, once they have read the body; the next one echoes it."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body += message["body"]
            is_whole = not message.get("more_body")
        scope["headers"].append((b"x-request-id", b"a"))  # as Serve's own layer does
        self.bodies.append(body)
        if len(self.bodies) > self.times:
            for message in convert_object_to_asgi_messages({"body": body.decode()}):
                await send(message)


async def posted(app: App, body: bytes, path: str = "/v1/completions") -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield body[:5]
        yield body[5:]

    transport = httpx.ASGITransport(OwnWords(app, Family.OPENAI))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        return await client.post(path, content=pieces())


async def test_a_short_request_is_asked_again_with_the_same_body() -> None:
    app = Dying(REPEATS)
    answer = await posted(app, b"x" * MAX_BYTES)
    assert answer.json() == {"body": "x" * MAX_BYTES}
    assert app.bodies == [b"x" * MAX_BYTES] * (1 + REPEATS)


async def test_a_request_that_ends_its_gateways_is_asked_so_often_and_no_more() -> None:
    app = Dying(100)
    check(await posted(app, b"x" * 10), LOST)
    assert len(app.bodies) == 1 + REPEATS


async def test_a_long_request_is_left_to_its_client() -> None:
    app = Dying(1)
    check(await posted(app, b"x" * (MAX_BYTES + 1)), LOST)
    assert app.bodies == [b"x" * (MAX_BYTES + 1)]


PATHS = ("/api/2.0/keys", "/openai/api/2.0/keys", "/console/key-new", "/console/api/api/2.0/keys")


@pytest.mark.parametrize("path", PATHS)
async def test_a_change_is_made_once_at_most(path: str) -> None:
    app = Dying(1)
    answer = await posted(app, b"{}", path)
    assert (answer.status_code, len(app.bodies)) == (503, 1)
    assert UNSURE.message in answer.text
    assert "retry-after" not in answer.headers
    assert answer.headers["x-should-retry"] == "false"


async def test_what_changes_nothing_is_asked_again_below_the_same_paths() -> None:
    app, console = Dying(1), Dying(1)
    assert (await asked(app, "/api/2.0/keys")).json() == {"body": ""}
    assert (await posted(console, b"{}", "/console/api/v1/completions")).json() == {"body": "{}"}
    assert (len(app.bodies), len(console.bodies)) == (2, 2)


@pytest.mark.parametrize("status", [200, 404, 503])
async def test_a_gateways_answers_stay_as_they_are(status: int) -> None:
    said = convert_object_to_asgi_messages({"error": "a"}, status_code=status)
    answer = await asked(answering(*said))
    assert (answer.status_code, answer.json()) == (status, {"error": "a"})


async def test_serves_own_pages_stay_as_they_are() -> None:
    assert (await asked(answering(*text(503)), "/-/healthz")).text == "Path not found"


async def test_an_answer_that_breaks_off_gets_no_second_one() -> None:
    start, body = convert_object_to_asgi_messages("ab")
    body["more_body"] = True
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": []}
    await OwnWords(answering(start, body), Family.OPENAI)(scope, receive, send)
    assert sent == [start, body]


def test_serve_takes_it_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(middleware.V1, "mindie")
    monkeypatch.setattr(f"ray.serve._private.http_util.{middleware.CALLBACK}", middleware.HERE)
    (made,) = configure_http_middlewares(HTTPOptions()).middlewares
    assert made.cls is OwnWords
    assert made.kwargs == {"v1": Family.MINDIE}
