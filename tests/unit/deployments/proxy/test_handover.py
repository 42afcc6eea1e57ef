"""Requests in the moments between gateways: while the old one has left and the new one is not known yet."""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from serve_app.deployments.proxy.answers import UNREADY
from serve_app.deployments.proxy.haproxy_config import HANDED, MAX_HANDED
from tests.support.haproxy import WAIT_S, Front, Replica, front, replica


@pytest.fixture
def old() -> Iterator[Replica]:
    with replica() as one:
        yield one


@pytest.fixture
def server(old: Replica) -> Iterator[Front]:
    with front({"wait_s": 60}, servers=[old.port]) as made:  # longer than a reload takes on a loaded machine
        yield made


class Asker:
    """One client that asks all the time, in a thread."""

    def __init__(self, url: str) -> None:
        self.answers: list[tuple[int, str]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(url,))

    def _ask(self, url: str) -> None:
        with httpx.Client(base_url=url, timeout=WAIT_S) as client:
            while not self._stop.is_set():
                try:
                    answer = client.get("/x")
                except httpx.HTTPError as error:  # of the test that asks, not of this thread
                    self.answers.append((0, repr(error)))
                else:
                    self.answers.append((answer.status_code, answer.text))

    def __enter__(self) -> Asker:
        self._thread.start()
        self.more()
        return self

    def more(self, count: int = 3) -> None:
        wanted, deadline = len(self.answers) + count, time.monotonic() + WAIT_S
        while len(self.answers) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def until_down(server: Front) -> None:
    """Wait until no gateway counts as running."""
    deadline = time.monotonic() + WAIT_S
    while httpx.get(f"{server.url}/-/healthz", timeout=WAIT_S).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["drains", pytest.param("refuses", marks=pytest.mark.full)])
def test_requests_wait_for_the_gateway_that_comes(server: Front, old: Replica, how: str) -> None:
    with replica() as new, Asker(server.url) as asker:
        if how == "drains":
            old.draining = True
            until_down(server)
        else:
            old.stop()
        time.sleep(1.0)  # the next configuration takes its time on a loaded machine
        server.reload(servers=[new.port])
        asker.more()
    assert set(asker.answers) == {(200, "/x")}


@pytest.mark.full
def test_requests_wait_for_a_gateway_that_is_back(server: Front, old: Replica) -> None:
    """In the same configuration: HAProxy took a gateway out that was late to answer."""
    with Asker(server.url) as asker:
        old.draining = True
        until_down(server)
        old.draining = False
        asker.more()
    assert set(asker.answers) == {(200, "/x")}


def test_a_connection_from_before_reaches_the_gateway_of_now(server: Front, old: Replica) -> None:
    """An idle connection stays with the HAProxy that took it, which knows former gateways alone."""
    body = bytes(3 * 2**20)
    with replica() as new, httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        assert client.get("/x").text == "/x"
        server.reload(servers=[new.port])
        assert server.started[0].poll() is None, "the connection was not kept"
        old.stop()
        answer = client.post("/echo", content=body)
        assert (answer.status_code, answer.content) == (200, body)
        answer = client.get("/y")
        assert (answer.status_code, answer.text) == (200, "/y")


@pytest.mark.parametrize("stays", [True, pytest.param(False, marks=pytest.mark.full)])
def test_without_a_gateway_the_wait_has_an_end(old: Replica, stays: bool) -> None:
    """`stays`: HAProxy counts the gateway that refuses. Else it has none."""
    with front({"wait_s": 1}, servers=[old.port]) as server:
        assert httpx.get(f"{server.url}/x", timeout=WAIT_S).text == "/x"
        old.stop()
        if not stays:
            until_down(server)
        answer = httpx.get(f"{server.url}/x", timeout=WAIT_S)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert UNREADY.message in answer.text


def test_no_request_is_handed_on_for_ever(server: Front) -> None:
    """Whoever handed a request on too often gets no further, be it a client that says so."""
    file = server.folder / "next"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(file)), base_url="http://x") as client:
        assert client.get("/x").text == "/x"
        assert client.get("/x", headers=[(HANDED, "1")] * (MAX_HANDED - 1)).text == "/x"
        assert client.get("/x", headers=[(HANDED, "1")] * MAX_HANDED).status_code == 503
    assert httpx.get(f"{server.url}/x", headers=[(HANDED, "1")] * MAX_HANDED, timeout=WAIT_S).text == "/x"
