"""The other ranks as rank 0 has them: processes that are lost together.

A rank that is gone, or shows no sign of life, ends all of them. Whatever waits for it in this process then
fails at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import torch

from serve_app.engine.model.isolation import DeviceBroken
from serve_app.engine.model.lora import Place
from serve_app.engine.pipe import Pipe, frame
from serve_app.engine.ranks.commands import Command, Reply, Start, Stop
from serve_app.engine.ranks.groups import RankGroups, joined
from serve_app.engine.ranks.launcher import Launcher
from serve_app.engine.ranks.life import Watch
from serve_app.engine.ranks.meeting import Meeting, RankRefused
from serve_app.engine.ranks.store import new_store, serve_store

log = logging.getLogger(__name__)

END_S: Final = 5.0  # for a follower to end by itself


def shapes_of(replies: Iterable[Reply]) -> dict[Place, tuple[int, int]]:
    """The linears of all replies, as of `leader.Others.await_ready`."""
    return {(layer, name): (n, k) for each in replies for layer, name, n, k in each.linears}


class Followers:
    """The ranks from 1 on. As `leader.Others`, for one thread; `close` and `when_lost` are for any."""

    def __init__(self, launcher: Launcher, config: bytes, size: int, stages: int = 1) -> None:
        """Let `launcher` start ranks 1 to `size` - 1, and wait until they are connected. They load then.

        `config`: for `Start`. `stages`: of the model. Raises RankRefused, with the ranks that are missing.
        """
        self.groups: RankGroups | None = None
        self._launcher, self._stages = launcher, stages
        self._lost: str | None = None
        self._losing = threading.Lock()
        self._tell: Callable[[str], None] = lambda reason: None
        self._number = 0  # of the last command
        ranks = range(1, size)
        try:
            with Meeting(launcher.host) as meeting:
                launcher.start(ranks, meeting.invitation)
                self._found = meeting.gather(ranks, ended=launcher.ended, place=launcher.place)
        except BaseException:
            launcher.end()
            raise
        for rank, each in sorted(self._found.items()):
            log.info("rank %d: %s at %s", rank, launcher.place(rank), each.host)
        self._hosts = [launcher.host, *(self._found[rank].host for rank in ranks)]
        self._store = new_store()
        self._pipes: dict[int, Pipe[Reply, Command]] = {}
        self._watch = Watch({rank: each.life for rank, each in self._found.items()}, self._on_lost)
        self._watch.start()
        for rank, each in self._found.items():
            serve_store(self._store, each.store)
            pipe = self._pipes[rank] = Pipe(each.work, Reply)
            with suppress(OSError):  # the reply says that it is gone
                pipe.send(Start(config, rank, self._hosts))

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank, on its machine."""
        return {rank: each.pid for rank, each in self._found.items()}

    @property
    def beside(self) -> int:
        """The number of ranks on this machine, with rank 0."""
        return self._hosts.count(self._hosts[0])

    def join(self, device: torch.device) -> RankGroups:
        """Wait until every rank has loaded its part, then join them. Raises RankRefused."""
        self._await("loaded")
        self.groups = joined(0, self._hosts, self._store, device, self._stages)
        return self.groups

    def await_ready(self) -> dict[Place, tuple[int, int]]:
        """Wait until every rank takes commands; as of `leader.Others`. Raises RankRefused."""
        replies = self._await("ready")
        self._watch.all_ready()
        return shapes_of(replies)

    def when_lost(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with the reason when a rank is lost; in another thread."""
        self._tell = tell
        if self._lost is not None:
            tell(self._lost)

    def send(self, command: Command) -> int:
        self.check()
        self._number += 1
        data = frame(command)
        try:
            for pipe in self._pipes.values():
                pipe.send_frame(data)
        except OSError as error:
            raise DeviceBroken(self._lost or "a rank is gone") from error
        return self._number

    def reached(self, number: int) -> None:
        self._watch.reached(number)

    def check(self) -> None:
        if self._lost is not None:
            raise DeviceBroken(self._lost)

    def agree(self, number: int, error: Exception) -> None:
        if not self._watch.all_failed(number):
            reason = self._lost or f"a command failed in rank 0 alone ({type(error).__name__})"
            self._on_lost(reason)
            raise DeviceBroken(reason) from error

    def refusal(self) -> RankRefused | None:
        """Why a rank ended during its start, if one has."""
        if self._lost is None:
            return None
        for rank, pipe in self._pipes.items():
            pipe.socket.settimeout(END_S)
            while (reply := pipe.receive()) is not None:
                if reply.refused is not None:
                    return RankRefused(f"rank {rank}: {reply.refused}")
        return RankRefused(self._lost)

    def close(self) -> None:
        """End all ranks."""
        self._watch.end()
        for pipe in self._pipes.values():
            with suppress(OSError):
                pipe.send(Stop())
            pipe.close()
        self._launcher.end(END_S)
        self._let_go()

    def _await(self, point: str) -> list[Reply]:
        replies = []
        for rank, pipe in self._pipes.items():
            reply = pipe.receive()
            if reply is None:
                raise self.refusal() or RankRefused(f"rank {rank} is gone")
            if reply.refused is not None:
                raise RankRefused(f"rank {rank}: {reply.refused}")
            if reply.point != point:
                raise RankRefused(f"rank {rank} is {reply.point}, not {point}")
            replies.append(reply)
        return replies

    def _on_lost(self, reason: str) -> None:
        with self._losing:
            if self._lost is not None:
                return
            self._lost = reason
        log.critical("%s; all ranks of the model end", reason)
        self._watch.end()
        self._launcher.end()
        self._let_go()
        self._tell(reason)

    def _let_go(self) -> None:
        """Wake what still waits for a rank in this process."""
        if self.groups is not None:
            self.groups.abort()
        for each in self._found.values():
            each.close()
