"""Signs of life: who is gone, who is silent, and which ranks fail by the same command."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from serve_app.engine.ranks import life
from serve_app.engine.ranks.life import FollowerLife, Watch

WAIT_S = 20.0


@dataclass
class Watched:
    """Two followers, and what is told of them."""

    watch: Watch
    ends: list[socket.socket]
    reasons: list[str] = field(default_factory=list)
    lost: threading.Event = field(default_factory=threading.Event)

    def tell(self, reason: str) -> None:
        self.reasons.append(reason)
        self.lost.set()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(life, "BEAT_S", 0.02)
    monkeypatch.setattr(life, "SILENT_S", 0.5)
    monkeypatch.setattr(life, "DIFFERS_S", 0.3)
    pairs = [socket.socketpair() for _ in range(2)]
    made = Watched(None, [theirs for _, theirs in pairs])  # type: ignore[arg-type]
    made.watch = Watch({1 + i: ours for i, (ours, _) in enumerate(pairs)}, made.tell)
    made.watch.start()
    yield made
    made.watch.end()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def beating(end: socket.socket) -> threading.Event:
    """Beats until the event is set."""
    still = threading.Event()
    alive = FollowerLife(end)

    def run() -> None:
        while not still.wait(0.02):
            alive._write(0)

    threading.Thread(target=run, daemon=True).start()
    return still


def test_a_rank_whose_connection_closes_is_gone(watched: Watched) -> None:
    watched.ends[1].close()
    assert watched.lost.wait(WAIT_S)
    assert watched.reasons == ["rank 2 is gone"]


def test_a_silent_rank_is_lost_once_all_are_ready(watched: Watched) -> None:
    still = [beating(end) for end in watched.ends]
    watched.watch.all_ready()
    assert not watched.lost.wait(1.5)  # three times the limit
    still[0].set()
    assert watched.lost.wait(WAIT_S)
    assert watched.reasons[0].startswith("rank 1 has shown no sign of life")
    still[1].set()


def test_a_rank_that_loads_may_be_silent_for_longer(watched: Watched) -> None:
    assert not watched.lost.wait(1.5)
    watched.watch.all_ready()  # its silence counts from here
    still = [beating(end) for end in watched.ends]
    assert not watched.lost.wait(1.5)
    for each in still:
        each.set()


def test_a_command_that_fails_everywhere_loses_no_rank(watched: Watched) -> None:
    for end in watched.ends:
        FollowerLife(end).failed(3)
    assert watched.watch.all_failed(3)
    assert not watched.lost.wait(1.0)


def test_a_command_that_fails_in_one_follower_alone_loses_all(watched: Watched) -> None:
    watched.watch.reached(3)
    FollowerLife(watched.ends[0]).failed(3)
    began = time.monotonic()
    assert watched.lost.wait(WAIT_S)
    assert time.monotonic() - began > 0.3  # the others had time to fail, too
    assert "no longer do the same" in watched.reasons[0]


def test_a_follower_may_fail_by_a_command_before_rank_0_comes_to_it(watched: Watched) -> None:
    for end in watched.ends:
        FollowerLife(end).failed(3)
        FollowerLife(end).failed(5)
    watched.watch.reached(2)
    assert not watched.lost.wait(1.5)
    watched.watch.reached(3)
    assert watched.watch.all_failed(3)
    assert not watched.lost.wait(1.5)  # for 5 is yet to come
    watched.watch.reached(5)
    assert watched.lost.wait(WAIT_S)  # rank 0 does not fail by it


def test_a_command_that_fails_in_rank_0_alone_is_not_that_of_all(watched: Watched) -> None:
    FollowerLife(watched.ends[0]).failed(2)
    FollowerLife(watched.ends[1]).failed(3)
    assert not watched.watch.all_failed(3)
