"""How commands reach a server: addresses, keys, and what is said when it fails."""

import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from serve_app.accounts.keys import new_key
from serve_app.api.directory import Directory
from serve_app.cli.server import Server
from serve_app.endpoints.catalogue import parse_catalogue
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app


def test_a_server_that_is_not_there_is_named_with_what_to_do(invoke):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        for command in ("endpoints", "health", "chat"):
            result = invoke(command, "--url", address)
            assert result.exit_code == 1
            assert address in result.stderr
            assert "is it running" in result.stderr.lower()
            assert "serve-app serve" in result.stderr


def test_a_base_url_as_sdks_have_it_and_a_bare_address_both_do(invoke, url):
    for form in (url, f"{url}/", f"{url}/v1", url.removeprefix("http://")):
        assert invoke("health", "--url", form).exit_code == 0, form
    assert invoke("health", env={"SERVE_APP_URL": url}).exit_code == 0


@pytest.mark.parametrize(
    "bad", ["ftp://host", "http://", "http://user:secret@host", "http://host/?q=1", "a b"]
)
def test_what_is_no_address_is_refused(invoke, bad):
    result = invoke("health", "--url", bad)
    assert result.exit_code == 2
    assert "--url" in result.stderr
    assert "secret" not in result.stderr


def test_a_key_is_sent_and_never_shown(invoke, serve, backend):
    key, line = new_key("alice")
    url = serve(fake_app(backend, keys=line))
    refused = invoke("endpoints", "--url", url)
    assert refused.exit_code == 1
    assert "SERVE_APP_KEY" in refused.stderr
    assert "HTTP 401" in refused.stderr
    wrong = invoke("endpoints", "--url", url, env={"SERVE_APP_KEY": f"{key}x"})
    assert wrong.exit_code == 1
    results = [invoke("endpoints", "--url", url, "--key", key)]
    results.append(invoke("endpoints", "--url", url, env={"SERVE_APP_KEY": key}))
    assert [result.exit_code for result in results] == [0, 0]
    assert all(key not in result.output for result in (refused, wrong, *results))


@pytest.mark.parametrize("bad", ["sk-x\u00fcyz", "sk-x\nInjected: yes", "sk x"])
def test_a_key_that_is_no_header_value_is_refused_without_showing_it(invoke, bad):
    result = invoke("health", env={"SERVE_APP_KEY": bad})
    assert result.exit_code == 2
    assert "ASCII" in result.stderr
    assert "Injected" not in result.stderr
    assert bad not in result.stderr


def test_a_full_server_says_when_to_come_back(invoke, serve):
    async def full(request):
        error = {"error": {"message": "the server is full \x1b[2J", "type": "x"}}
        return JSONResponse(error, 503, headers={"retry-after": "7"})

    url = serve(Starlette(routes=[Route("/v1/models", full)]))
    result = invoke("endpoints", "--url", url)
    assert result.exit_code == 1
    assert "the server is full [2J (HTTP 503); try again in 7 s" in result.stderr


def test_something_else_at_the_address_is_recognised(invoke, serve):
    async def page(request):
        return PlainTextResponse("<html>It works!</html>")

    url = serve(Starlette(routes=[Route("/v1/models", page)]))
    result = invoke("endpoints", "--url", url)
    assert result.exit_code == 1
    assert "check --url" in result.stderr


STREAM = (
    ": comment\n\n"
    'data: {"a": "x\u2028y\u0085z 😀"}\n\n'
    "event: other\r\nid: 7\r\ndata:one\r\ndata: two\r\n\r\n"
    "event: without data\n\n"
    "data: [DONE]\n\n"
    "data: not ended\n"
).encode()


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_the_data_of_complete_events_is_read_however_the_bytes_are_cut(serve, size):
    async def stream(request):
        async def chunks():
            for at in range(0, len(STREAM), size):
                yield STREAM[at : at + size]
                await asyncio.sleep(0)

        return StreamingResponse(chunks(), media_type="text/event-stream")

    url = serve(Starlette(routes=[Route("/x", stream, methods=["POST"])]))
    with Server(url).stream("/x", {}) as events:
        assert list(events) == ['{"a": "x\u2028y\u0085z 😀"}', "one\ntwo", "[DONE]"]


def test_an_event_is_there_as_soon_as_it_is_complete(serve):
    async def stream(request):
        async def chunks():
            yield b"data: first\n\n"
            await asyncio.Event().wait()

        return StreamingResponse(chunks(), media_type="text/event-stream")

    url = serve(Starlette(routes=[Route("/x", stream, methods=["POST"])]))
    with Server(url).stream("/x", {}) as events:
        assert next(events) == "first"


def test_an_answer_that_is_no_stream_is_recognised(invoke, serve):
    async def page(request):
        return PlainTextResponse("<html>It works!</html>")

    url = serve(Starlette(routes=[Route("/v1/chat/completions", page, methods=["POST"])]))
    result = invoke("chat", "some-model", "--url", url, input="Hello!")
    assert result.exit_code == 1
    assert "check --url" in result.stderr


def test_loopback_is_reached_past_a_proxy_of_the_environment(invoke, url):
    assert invoke("health", "--url", url, env={"HTTP_PROXY": "http://127.0.0.1:9"}).exit_code == 0


def test_health_of_a_ready_server(invoke, url):
    result = invoke("health", "--url", url)
    assert (result.exit_code, result.output) == (0, "live:  yes\nready: yes\n")


NOBODY = "endpoint demo has no entity that can answer: model-demo: loading"


def test_health_of_a_server_that_lacks_something_but_answers(invoke, serve):
    split = {"name": "split", "served_entities": [{"model": "demo"}, {"model": "org/other"}]}
    directory = Directory(parse_catalogue({"endpoints": [split | {"traffic": {"demo": 100}}]}))
    url = serve(fake_app(FakeBackend(loading={"demo"}), directory=directory))
    result = invoke("health", "--url", url)
    assert result.exit_code == 0
    assert result.output.endswith("ready: yes, but degraded\n  endpoint split: model-demo: loading\n")


def test_health_gives_the_reasons_to_those_who_may_know(invoke, serve):
    key, line = new_key("alice")
    url = serve(fake_app(FakeBackend(loading={"demo"}), keys=line))
    outside = invoke("health", "--url", url)
    assert (outside.exit_code, outside.output) == (1, "live:  yes\nready: no (HTTP 503)\n")
    inside = invoke("health", "--url", url, "--key", key)
    assert (inside.exit_code, inside.output) == (1, f"live:  yes\nready: no (HTTP 503)\n  {NOBODY}\n")
