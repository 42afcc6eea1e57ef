"""Ends a running server: gateways refuse new requests, and answers may finish within a grace period."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import psutil

from serve_app.deployments.gateway.drain import DRAIN, FLUSH, ask
from serve_app.deployments.launcher.terminal import say

POLL_S: Final = 0.1
SAY_S: Final = 5.0  # between two lines about how many are left
REPLY_S: Final = 5.0  # a gateway that is busier than this is asked again
SENT_S: Final = 30.0  # as long as a gateway waits for a client that does not read
BUSY: Final = 0.25  # share of a core that a proxy with nothing to pass on does not use
_SETTLED: Final = 2  # checks in a row without unsent bytes: a proxy may be between two writes
_TCP_FILES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_OPEN_STATES: Final = frozenset({"01", "04", "05", "08", "09"})  # established, and half closed by either side


def finish(folder: Path, ports: Collection[int], grace_s: float) -> str | None:
    """Let the running answers of all gateways end. Returns None, or a message about what was cut off and why.

    `ports`: where clients connect.
    """
    deadline = time.monotonic() + grace_s
    said: int | None = None
    said_at = 0.0  # never
    while (left := _under_way(folder)) != 0:
        now = time.monotonic()
        if now > deadline:
            return f"{_answers(left)} cut: not done within the grace of {grace_s:g} s (--grace)"
        if not said_at:
            say(f"finishing {_answers(left)}; Ctrl-C again stops at once")
            said, said_at = left, now
        elif left not in (None, said) and now - said_at >= SAY_S:
            say(f"{_answers(left)} left")
            said, said_at = left, now
        if left is not None:  # otherwise a gateway was too busy to reply: ask again
            time.sleep(POLL_S)
    _until_sent(ports, min(deadline, time.monotonic() + SENT_S))
    with contextlib.suppress(TimeoutError):
        ask(folder, FLUSH, REPLY_S)
    return None


def _under_way(folder: Path) -> int | None:
    """The number of answers under way in all gateways; None if a gateway is alive but does not reply."""
    try:
        return ask(folder, DRAIN, REPLY_S)
    except TimeoutError:
        return None


def _answers(count: int | None) -> str:
    if count is None:
        return "answers"
    return f"{count} answer{'' if count == 1 else 's'}"


def _until_sent(ports: Collection[int], deadline: float) -> None:
    """Wait until clients have everything that was sent to them.

    HAProxy and gateways hold bytes back only while the system's send buffer is full, so watching that buffer
    is enough. Serve's Python proxy also has a queue of its own, and uses the CPU as long as the queue is not
    empty.
    """
    settled, proxies = 0, _python_proxies(ports)
    used = _cpu_s(proxies)
    while settled < _SETTLED and time.monotonic() < deadline:
        time.sleep(POLL_S)
        before, used = used, _cpu_s(proxies)
        is_busy = used - before > BUSY * POLL_S or any(unsent(text, ports) for text in _tables())
        settled = 0 if is_busy else settled + 1


def _python_proxies(ports: Collection[int]) -> list[psutil.Process]:
    """Serve's own proxies, if they listen at `ports`."""
    with contextlib.suppress(psutil.Error, OSError):
        found = psutil.net_connections("tcp")
        listening = [each for each in found if each.status == psutil.CONN_LISTEN]
        pids = {each.pid for each in listening if each.laddr and each.laddr.port in ports}
        processes = [psutil.Process(pid) for pid in pids if pid is not None]
        return [each for each in processes if "ProxyActor" in " ".join(each.cmdline())]
    return []


def _cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for each in processes:
        with contextlib.suppress(psutil.Error):
            times = each.cpu_times()
            total += times.user + times.system
    return total


def _tables() -> list[str]:
    found = []
    for path in _TCP_FILES:
        with contextlib.suppress(OSError):  # no Linux, or no IPv6
            found.append(path.read_text())
    return found


def unsent(table: str, ports: Collection[int]) -> int:
    """Bytes in the send queues of open connections to local `ports`, from a table of /proc/net/tcp."""
    total = 0
    for line in table.splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if state in _OPEN_STATES and int(local.rpartition(":")[2], 16) in ports:
            total += int(queues.partition(":")[0], 16)
    return total
