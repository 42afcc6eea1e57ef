"""How the processes of ranks are started and ended. Here: as child processes of rank 0.

A launcher gets the numbers of ranks, from 1 on, and the invitation by which they dial rank 0 (see `meeting`).
Depends neither on Ray nor on what ranks compute.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

LOOPBACK: Final = "127.0.0.1"


class Launcher(Protocol):
    """Starts the ranks of one model, and ends them. Its calls may come from any thread."""

    @property
    def host(self) -> str:
        """The address of this machine at which the ranks reach rank 0."""
        ...

    def start(self, ranks: Iterable[int], invitation: bytes) -> None:
        """Start a process for each rank, which passes the invitation to `meeting.dial`."""
        ...

    def place(self, rank: int) -> str:
        """The process or actor of a rank, and its machine, in words."""
        ...

    def ended(self) -> Mapping[int, str]:
        """The ranks whose process has ended, with the reason."""
        ...

    def end(self, wait_s: float = 0.0) -> None:
        """Wait until all processes have ended by themselves, for `wait_s` at most; then kill the rest."""
        ...


class ChildProcesses:
    """Runs `command` with the number of each rank. The invitation is the input of the process."""

    host: Final = LOOPBACK

    def __init__(self, command: Sequence[str], environments: Mapping[int, Mapping[str, str]]) -> None:
        """`environments`: of each rank."""
        self._command, self._environments = command, environments
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, ranks: Iterable[int], invitation: bytes) -> None:
        for rank in ranks:
            source, sink = os.pipe()
            with open(source, "rb") as its_input:
                with open(sink, "wb") as ours:
                    ours.write(invitation)  # fits into a pipe
                self._children[rank] = subprocess.Popen(
                    [*self._command, str(rank)], stdin=its_input, env=dict(self._environments[rank])
                )

    def place(self, rank: int) -> str:
        return f"process {self._children[rank].pid}"

    def ended(self) -> Mapping[int, str]:
        found = {rank: child.poll() for rank, child in self._children.items()}
        return {rank: f"ended with status {status}" for rank, status in found.items() if status is not None}

    def end(self, wait_s: float = 0.0) -> None:
        deadline = time.monotonic() + wait_s
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
