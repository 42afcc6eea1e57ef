"""The other ranks as rank 0 has them: child processes, which are lost together.

A rank that is gone, or shows no sign of life, ends all of them. Whatever waits for it in this process then
fails at once.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

from serve_app.engine.model.isolation import DeviceBroken
from serve_app.engine.pipe import Pipe, frame
from serve_app.engine.ranks.commands import Command, Reply, Start, Stop
from serve_app.engine.ranks.group import RankGroup
from serve_app.engine.ranks.life import Watch

log = logging.getLogger(__name__)

END_S: Final = 5.0  # for a follower to end by itself


class RankRefused(Exception):
    """A rank cannot load its part of the model; the message says why."""


class Followers:
    """The ranks from 1 on. As `leader.Others`, for one thread; `close` and `when_lost` are for any."""

    def __init__(
        self, command: Sequence[str], config: bytes, environments: Sequence[Mapping[str, str]]
    ) -> None:
        """Start a process with each of `environments`: `command`, followed by the numbers of two sockets.

        `config`: for `Start`.
        """
        self.group: RankGroup | None = None
        self._lost: str | None = None
        self._losing = threading.Lock()
        self._tell: Callable[[str], None] = lambda reason: None
        self._number = 0  # of the last command
        self._folder = Path(tempfile.mkdtemp(prefix="serve-app-ranks-"))
        self._size, meeting = 1 + len(environments), str(self._folder / "meeting")
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, Pipe[Reply, Command]] = {}
        lives: dict[int, socket.socket] = {}
        for rank, environment in enumerate(environments, 1):
            (work, its_work), (lives[rank], its_life) = socket.socketpair(), socket.socketpair()
            with its_work, its_life:
                its = [its_work.fileno(), its_life.fileno()]
                self._children[rank] = subprocess.Popen(
                    [*command, *map(str, its)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=its,
                    env=dict(environment),
                )
            self._pipes[rank] = Pipe(work, Reply)
        self._lives = lives
        self._watch = Watch(lives, self._on_lost)
        self._watch.start()
        for rank, pipe in self._pipes.items():
            with suppress(OSError):  # the reply says that it is gone
                pipe.send(Start(config, rank, meeting))

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank."""
        return {rank: child.pid for rank, child in self._children.items()}

    def join(self, device: torch.device) -> RankGroup:
        """Wait until every rank has loaded its part, then join them. Raises RankRefused."""
        self._await("loaded")
        self.group = RankGroup(0, self._size, self._folder / "meeting", device)
        return self.group

    def await_ready(self) -> None:
        """Wait until every rank takes commands. Raises RankRefused."""
        self._await("ready")
        self._watch.all_ready()

    def when_lost(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with the reason when a rank is lost; in another thread."""
        self._tell = tell
        if self._lost is not None:
            tell(self._lost)

    def send(self, command: Command) -> None:
        self.check()
        self._number += 1
        data = frame(command)
        try:
            for pipe in self._pipes.values():
                pipe.send_frame(data)
        except OSError as error:
            raise DeviceBroken(self._lost or "a rank is gone") from error

    def check(self) -> None:
        if self._lost is not None:
            raise DeviceBroken(self._lost)

    def agree(self, error: Exception) -> None:
        if not self._watch.all_failed(self._number):
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
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_S)
        self._kill()

    def _await(self, point: str) -> None:
        for rank, pipe in self._pipes.items():
            reply = pipe.receive()
            if reply is None:
                raise self.refusal() or RankRefused(f"rank {rank} is gone")
            if reply.refused is not None:
                raise RankRefused(f"rank {rank}: {reply.refused}")
            if reply.point != point:
                raise RankRefused(f"rank {rank} is {reply.point}, not {point}")

    def _on_lost(self, reason: str) -> None:
        with self._losing:
            if self._lost is not None:
                return
            self._lost = reason
        log.critical("%s; all ranks of the model end", reason)
        self._watch.end()
        self._kill()
        self._tell(reason)

    def _kill(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        if self.group is not None:
            self.group.abort()
        for each in self._lives.values():
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)
