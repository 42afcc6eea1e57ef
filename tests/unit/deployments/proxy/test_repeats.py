"""A request whose gateway ends before it answered: what HAProxy repeats, and what it leaves to the client."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator

import httpx
import pytest

from serve_app.api.error_renderers import render_error
from serve_app.api.protocol.family import HEADER, Family
from serve_app.console.site import API, PREFIX
from serve_app.deployments import environment
from serve_app.deployments.environment import haproxy, private_folder
from serve_app.deployments.proxy import repeats
from serve_app.deployments.proxy.answers import LOST, SLOW, UNSURE
from tests.support.haproxy import WAIT_S, Front, Replica, front, replica

SHORT = b"x" * repeats.MAX_BYTES
LONG = b"x" * 20_000
SHORT_S = 1


@pytest.fixture
def gateways() -> Iterator[list[Replica]]:
    with replica() as one, replica() as other:
        one.dies = True
        yield [one, other]


@pytest.fixture
def server(gateways: list[Replica]) -> Iterator[Front]:
    with front(servers=[each.port for each in gateways]) as made:
        yield made


@pytest.fixture(params=["first", "later"])
def client(server: Front, gateways: list[Replica], request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client whose next request is the first on its connection, or not."""
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as made:
        if request.param == "later":
            assert made.get("/x").text == "/x"
        for each in gateways:
            each.asked.clear()
        yield made


def asked(gateways: list[Replica]) -> int:
    return sum(len(each.asked) for each in gateways)


@pytest.mark.parametrize(("method", "body"), [("GET", b""), ("POST", b"x"), ("POST", SHORT)], ids=str)
def test_another_gateway_answers_what_the_first_one_left(
    client: httpx.Client, gateways: list[Replica], method: str, body: bytes
) -> None:
    """httpx sends headers and body one after the other, as most clients do."""
    for number in range(4):  # two of them, at least, meet the one that dies
        assert client.request(method, f"/{number}", content=body).text == f"/{number}"
    assert asked(gateways) > 4


def test_a_body_that_haproxy_does_not_hold_is_left_to_its_client(
    client: httpx.Client, gateways: list[Replica]
) -> None:
    answers = [client.post("/x", content=LONG, headers={HEADER: "mindie"}) for _ in range(4)]
    assert asked(gateways) == 4
    lost = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(lost) < 4
    for answer in lost:
        assert answer.status_code == 503
        assert answer.text == render_error(Family.MINDIE, LOST).body.decode()
        assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/2.0/keys"),
        ("POST", "/databricks/api/2.0/token/create"),
        ("DELETE", "/api/2.0/serving-endpoints/%61"),
        ("POST", "/console/key-new"),
        ("POST", "/console/api/api/2.0/keys"),
    ],
)
def test_a_change_is_made_once_at_most(
    client: httpx.Client, gateways: list[Replica], method: str, path: str
) -> None:
    answers = [client.request(method, path, content=b"x") for _ in range(4)]
    assert asked(gateways) == 4
    lost = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(lost) < 4
    family = Family.OPENAI if path.startswith("/console") else Family.DATABRICKS
    for answer in lost:
        assert answer.status_code == 503
        assert answer.text == render_error(family, UNSURE).body.decode()
        assert "retry-after" not in answer.headers
        assert answer.headers["x-should-retry"] == "false"


def test_what_the_console_asks_of_a_model_is_asked_again(
    client: httpx.Client, gateways: list[Replica]
) -> None:
    path = "/console/api/v1/completions"
    for _ in range(4):
        assert client.post(path, content=b"x").text == path
    assert asked(gateways) > 4


def test_the_console_is_known_by_its_paths() -> None:
    assert (PREFIX + "/", API) == (repeats.CONSOLE, repeats.CONSOLE_API)


def test_what_changes_nothing_is_asked_again_below_the_same_paths(
    client: httpx.Client, gateways: list[Replica]
) -> None:
    for _ in range(4):
        assert client.get("/api/2.0/keys").text == "/api/2.0/keys"
    assert asked(gateways) > 4


def test_a_change_that_no_gateway_got_is_asked_again(gateways: list[Replica]) -> None:
    with (
        front(servers=[environment.free_port(), gateways[1].port]) as server,
        httpx.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        for _ in range(4):
            assert client.post("/api/2.0/keys", content=b"x").text == "/api/2.0/keys"


def test_an_answer_that_has_begun_is_not_begun_again(client: httpx.Client, gateways: list[Replica]) -> None:
    for each in gateways:
        each.dies, each.breaks = False, True
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/x", content=b"x")
    assert asked(gateways) == 1


def test_a_request_that_ends_its_gateways_does_not_meet_all_of_them(
    client: httpx.Client, gateways: list[Replica]
) -> None:
    gateways[1].dies = True
    assert client.post("/x", content=b"x").status_code == 503
    assert asked(gateways) == 1 + repeats.REPEATS


def test_a_short_body_that_does_not_come_is_told_in_its_protocols_words() -> None:
    rules = tuple(rule.replace("30s", f"{SHORT_S}s") for rule in repeats.request_rules())
    note = f"http-request set-var(txn.serve_app_protocol) str({Family.OVMS})"
    with front({"request_rules": (note, *rules)}) as made:
        answer = said(made, b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(render_error(Family.OVMS, SLOW).body)


def test_ray_is_told_of_them() -> None:
    folder = private_folder()
    try:
        assert repeats.ENVIRONMENT.items() <= haproxy(folder).items()
    finally:
        shutil.rmtree(folder)


def said(server: Front, request: bytes) -> bytes:
    """All that comes back for `request`, until the connection ends."""
    with socket.create_connection(("127.0.0.1", server.config["port"]), WAIT_S) as sock:
        sock.sendall(request)
        answer = b""
        while piece := sock.recv(2**16):
            answer += piece
    return answer
