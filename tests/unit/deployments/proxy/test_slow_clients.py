"""Clients that hold connections, asked of the real HAProxy with shorter times than usual."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support.haproxy import WAIT_S, Front, front, replica

SHORT_S = 1
HALF = b"GET /x HTTP/1.1\r\nHost: a\r\nX-Half"
SLOW_BODY = b"POST /wait/600 HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"


@pytest.fixture(scope="module")
def server() -> Iterator[Front]:
    changes = {"headers_s": SHORT_S, "client_s": SHORT_S}
    with replica() as one, front(changes, servers=[one.port], maxconn=40) as made:
        yield made


def connected(server: Front, source: str = "127.0.0.1") -> socket.socket:
    address = ("127.0.0.1", server.config["port"])
    return socket.create_connection(address, WAIT_S, source_address=(source, 0))


def until_closed(sock: socket.socket, send: bytes = b"") -> float:
    """Seconds until the server closed it; `send` goes out ten times a second."""
    started = time.monotonic()
    sock.settimeout(0.1)
    while time.monotonic() - started < WAIT_S:
        try:
            if not sock.recv(2**16):
                break
        except TimeoutError:
            with contextlib.suppress(OSError):
                sock.sendall(send)
        except OSError:
            break
    return time.monotonic() - started


def test_headers_and_bodies_that_do_not_come_end_the_connection(server: Front) -> None:
    begin = [b"", b"GET", HALF, b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /", SLOW_BODY]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in begin]
        for client, text in zip(clients, begin, strict=True):
            client.sendall(text)
        assert all(until_closed(client) < WAIT_S for client in clients)


def test_a_header_now_and_then_wins_no_time(server: Front) -> None:
    with connected(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        assert until_closed(sock, b"X: y\r\n") < WAIT_S


def test_an_answer_that_takes_longer_than_a_client_may_be_idle_arrives(server: Front) -> None:
    answer = httpx.get(f"{server.url}/stream/2/{2 * SHORT_S}", timeout=WAIT_S)
    assert answer.text.split() == ["0", "1"]
    assert httpx.get(f"{server.url}/wait/{2 * SHORT_S}", timeout=WAIT_S).status_code == 200


def test_a_client_that_takes_nothing_is_let_go(server: Front) -> None:
    """Seen from HAProxy: the client itself cannot tell before it reads."""
    with connected(server) as sock:
        port = sock.getsockname()[1]
        sock.sendall(b"GET /flood/64 HTTP/1.1\r\nHost: a\r\n\r\n")
        deadline = time.monotonic() + WAIT_S
        while any(each.raddr and each.raddr[1] == port for each in server.haproxy().net_connections()):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_one_client_with_all_the_connections_it_can_get_leaves_others_theirs(server: Front) -> None:
    """40 connections are allowed, and 20 a client."""
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as closed:
        refused = 0
        for _ in range(60):
            try:
                sock = stack.enter_context(connected(server))
                sock.sendall(HALF)
            except OSError:
                refused += 1
            else:
                closed.register(sock, selectors.EVENT_READ)
        while refused < 40:
            for key, _ in closed.select(WAIT_S):
                closed.unregister(key.fileobj)
                refused += 1
        with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as other:
            assert other.get(server.url).status_code == 200
    deadline = time.monotonic() + WAIT_S
    while not _answers(server):  # and the first one again, once it has let go
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _answers(server: Front) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(server.url, timeout=WAIT_S).status_code == 200
    return False


def test_many_requests_on_one_connection_have_each_their_time(server: Front) -> None:
    started = time.monotonic()
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        while time.monotonic() - started < SHORT_S + 1:
            assert client.get("/x").status_code == 200
            time.sleep(0.2)
