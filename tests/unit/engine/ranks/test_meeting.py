"""Ranks dial rank 0 over a network on which anybody may dial."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import pytest

from serve_app.engine.ranks import meeting
from serve_app.engine.ranks.launcher import LOOPBACK
from serve_app.engine.ranks.meeting import Connections, Meeting, RankRefused, dial

WAIT_S = 60.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def place(rank: int) -> str:
    return f"process of {rank}"


def gather(at: Meeting, ranks: range, start_s: float = WAIT_S) -> dict[int, Connections]:
    return at.gather(ranks, ended=dict, place=place, start_s=start_s)


def address(at: Meeting) -> tuple[str, int]:
    host, port, _ = msgspec.msgpack.decode(at.invitation)
    return host, port


def test_each_rank_has_connections_of_its_own(threads: ThreadPoolExecutor) -> None:
    with Meeting(LOOPBACK) as at:
        dialled = {rank: threads.submit(dial, at.invitation, rank) for rank in (2, 1)}
        found = gather(at, range(1, 3))
        where = address(at)
    assert sorted(found) == [1, 2]
    for rank, here in found.items():
        there = dialled[rank].result(WAIT_S)
        assert (here.host, here.pid) == (LOOPBACK, os.getpid())
        for name in ("life", "work", "store"):
            one, other = getattr(here, name), getattr(there, name)
            one.sendall(name.encode())
            assert other.recv(16) == name.encode()
            other.sendall(b"back")
            assert one.recv(16) == b"back"
            assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        here.close()
        there.close()
    with pytest.raises(ConnectionRefusedError):  # rank 0 listens no more
        socket.create_connection(where, WAIT_S)


def test_strangers_are_disconnected_and_keep_no_rank_waiting(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "MAX_STRANGERS", 3)
    with Meeting(LOOPBACK) as at:
        where = address(at)
        silent = [socket.create_connection(where, WAIT_S) for _ in range(6)]
        wrong = socket.create_connection(where, WAIT_S)
        wrong.sendall(meeting._HELLO.pack(b"\0" * 32, 1, 0, os.getpid()))
        again = threads.submit(dial, at.invitation, 7)  # no rank that was asked for
        dialled = threads.submit(dial, at.invitation, 1)
        found = gather(at, range(1, 2))
    other = again.result(WAIT_S)
    for stranger in (*silent, wrong, other.life, other.work):
        stranger.settimeout(WAIT_S)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    for each in (found[1], dialled.result(WAIT_S), other):
        each.close()


def test_a_rank_cannot_be_taken_twice(threads: ThreadPoolExecutor) -> None:
    with Meeting(LOOPBACK) as at:
        first = threads.submit(dial, at.invitation, 1)
        gather(at, range(1, 2))
        second = threads.submit(dial, at.invitation, 1)
        dialled = threads.submit(dial, at.invitation, 2)
        found = gather(at, range(1, 3))
        late = second.result(WAIT_S)
        late.life.settimeout(WAIT_S)
        assert found[1].life.getpeername() == first.result(WAIT_S).life.getsockname()
    for each in (*found.values(), late, first.result(), dialled.result(WAIT_S)):
        each.close()


def test_ranks_that_do_not_start_are_named() -> None:
    with Meeting(LOOPBACK) as at, pytest.raises(RankRefused) as refused:
        gather(at, range(1, 3), start_s=0.1)
    assert "within 0 s: rank 1 (process of 1); rank 2 (process of 2)" in str(refused.value)


def test_a_rank_that_ends_first_is_named() -> None:
    with Meeting(LOOPBACK) as at, pytest.raises(RankRefused) as refused:
        at.gather(range(1, 3), ended=lambda: {2: "ended with status 3"}, place=place)
    assert str(refused.value) == "rank 2 (process of 2) ended with status 3"
