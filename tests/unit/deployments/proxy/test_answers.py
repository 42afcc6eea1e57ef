"""What HAProxy says by itself, beside what the gateway would have said."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import httpx
import pytest

from serve_app.api.error_renderers import render_error
from serve_app.api.protocol.family import ANTHROPIC_VERSION, HEADER, WORDS, Family, family_of, split_prefix
from serve_app.deployments.proxy.answers import LOST, MISSING, NOT_HTTP, STARTING, UNREADY
from serve_app.errors import ServeError
from tests.support.haproxy import Front, front, replica

PATHS = [
    "/",
    "/generate",
    "/generate_stream",
    "/infer",
    "/infer/x",
    "/livez",
    "/metrics",
    "/v1/chat/completions",
    "/v1/models/a%2Fb",
    "/v1",
    "/v11/x",
    "/%761/models",
    "/v2",
    "/v2/",
    "/v2x",
    "/v2/health/ready",
    "/v2/models/demo-chat/infer",
    "/v2/models/demo-chat/generate",
    "/v2/models/a/versions/1/generate_stream",
    "/v2/models/a/stopInfer",
    "/v2/models/a/stopInfer?x=/infer",
    "/v2/models/generate/config",
    "/v3/chat/completions",
    "/v3/v1/models",
    "/v3",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/message",
    "/serving-endpoints/anthropic/v1/models",
    "/ai-gateway/anthropic/v1/messages",
    "/openai/v1/messages",
    "/serving-endpoints/a/invocations",
    "/serving-endpoints",
    "/api/2.0/serving-endpoints",
    "/api/2x0/serving-endpoints",
    *(
        f"/{word}{path}"
        for word in WORDS
        for path in ("/v1/chat/completions", "/v2", "/v2/x", "/v3/x", "/x", "")
    ),
    "/mindie/v2/models/a/infer",
    "/openai/serving-endpoints/a/invocations",
    "/other/v1/models",
    "/mindie/mindie/v1/x",
]


@pytest.fixture(scope="module", params=[Family.OPENAI, Family.MINDIE])
def v1(request: pytest.FixtureRequest) -> Family:
    return Family(request.param)


@pytest.fixture(scope="module")
def server(v1: Family) -> Iterator[Front]:
    with front({"wait_s": 0}, v1=v1) as made:  # how long a request waits is in test_handover.py
        yield made


def check(answer: httpx.Response, error: ServeError, family: Family) -> None:
    expected = render_error(family, error)
    assert answer.text == expected.body.decode(), answer.url
    assert {name: answer.headers.get(name) for name in expected.headers} == expected.headers


def test_every_path_is_answered_as_its_protocol_says(server: Front, v1: Family) -> None:
    for answers, error, status in (
        ({"servers": None}, STARTING, 503),
        ({"servers": []}, UNREADY, 503),
    ):
        server.reload(**answers)
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for path in PATHS:
                prefix, inner = split_prefix(unquote(path.partition("?")[0]))
                answer = client.get(path)
                check(answer, error, family_of(None, prefix, inner, v1))
                assert answer.status_code == status
                assert answer.headers["retry-after"] == "2"


def test_the_header_decides_before_the_path(server: Front, v1: Family) -> None:
    server.reload(servers=[])
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for word, family in WORDS.items():
            for path in ("/v1/chat/completions", "/v3/models", "/mindie/v1/models", "/x"):
                check(client.post(path, headers={HEADER: word}), UNREADY, family)
        check(client.get("/v3/models", headers={HEADER: "none"}), UNREADY, Family.OVMS)


def test_a_gateway_that_ends_without_an_answer_is_told_in_the_protocols_words(server: Front) -> None:
    with replica() as gateway:
        for path, family in (("/die/", Family.OPENAI), ("/die/mindie", Family.MINDIE)):
            server.reload(servers=[gateway.port])  # so that the connection is a new one
            answer = httpx.get(f"{server.url}{path}", headers={HEADER: family}, timeout=60)
            check(answer, LOST, family)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "2"


def test_a_gateway_that_is_gone_and_not_yet_missed_is_not_ready(server: Front) -> None:
    with replica() as gateway:
        server.reload(servers=[gateway.port])
        assert httpx.get(f"{server.url}/v3/x", timeout=60).status_code == 200
    answer = httpx.get(f"{server.url}/v3/x", timeout=30)
    check(answer, UNREADY, Family.OVMS)
    assert answer.status_code == 503


@pytest.mark.parametrize("path", ["/-/routes", "/-/Routes", "/%2d/routes", "/-/routes?x"])
def test_nobody_is_told_the_applications(server: Front, path: str) -> None:
    with replica() as gateway:
        server.reload(servers=[gateway.port])
        answer = httpx.get(f"{server.url}{path}", timeout=60)
        check(answer, MISSING, Family.OPENAI)
        assert answer.status_code == 404
        assert not [asked for asked in gateway.asked if "outes" in asked]


def test_a_request_that_a_gateways_server_cannot_read_is_told_in_the_protocols_words(server: Front) -> None:
    """The server of a gateway says so in plain text."""
    with replica() as gateway:
        server.reload(servers=[gateway.port])
        for word, family in WORDS.items():
            answer = httpx.get(f"{server.url}/text/400", headers={HEADER: word}, timeout=60)
            check(answer, NOT_HTTP, family)
            assert answer.status_code == 400


def test_a_client_of_anthropics_is_told_in_anthropics_shape(server: Front) -> None:
    server.reload(servers=[])
    headers = {ANTHROPIC_VERSION: "2023-06-01"}
    check(httpx.get(f"{server.url}/v1/models", headers=headers, timeout=60), UNREADY, Family.ANTHROPIC)
    forced = {**headers, HEADER: "mindie"}
    check(httpx.get(f"{server.url}/v1/models", headers=forced, timeout=60), UNREADY, Family.MINDIE)


def test_a_path_that_no_application_has_is_missing(server: Front) -> None:
    with replica() as gateway:
        server.reload(servers=[gateway.port], prefix="/api")
        try:
            assert httpx.get(f"{server.url}/api/x", timeout=60).status_code == 200
            answer = httpx.get(f"{server.url}/v2/x", timeout=60)
            check(answer, MISSING, Family.TRITON)
            assert answer.status_code == 404
        finally:
            server.reload(servers=None, prefix="/")
