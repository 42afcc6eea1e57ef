"""A gateway's access to the control plane: each command is one call, and snapshots come by a long poll.

A gateway never waits for the control plane while it serves a request. It routes by the newest snapshot it
has, and keeps it in a file, from which the next gateway starts if the control plane cannot be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from serve_app.channel.calls import decode_reply, encode_command
from serve_app.errors import ServeError, Unavailable
from serve_app.types import Caller
from serve_app.types.control import Command, GatewayReport, ReplyT, Snapshot, WatchSnapshot

logger = logging.getLogger(__name__)

COMMAND_S: Final = 30.0  # for the reply to a command; the slowest asks the cluster for its resources
POLL_S: Final = 10.0  # the longest poll, and so the longest time between two reports
SLACK_S: Final = 10.0  # by which the reply to a poll may be late
PAUSE_S: Final = 0.5  # after a failed call
LEAVE_S: Final = 2.0  # for the last report; without it a gateway counts as living for a while
RECONNECT_S: Final = 5.0  # for which a command waits for a control plane that restarts
RETRY_AFTER_S: Final = 2.0  # for clients: Serve replaces a control plane within seconds
AWAY: Final = "the control plane does not answer; try again"
ITSELF: Final = Caller(key_id="gateway", scopes=frozenset(), salt="")  # the sender of polls

_encoder = msgspec.msgpack.Encoder()
_snapshot_decoder: msgspec.msgpack.Decoder[Snapshot] = msgspec.msgpack.Decoder(Snapshot)


class ControlLink:
    """Calls of the control plane. Must be made outside any request: Serve may cancel calls with a request."""

    def __init__(self, handle: DeploymentHandle) -> None:
        """`handle`: the handle of the one `ControlReplica`."""
        self._handle = handle

    async def call(self, command: Command[ReplyT], caller: Caller, within_s: float) -> ReplyT:
        """The reply to `command`. Raises ServeError, for example Unavailable if no reply comes in time."""
        response = self._handle.do.remote(encode_command(command, caller))
        try:
            async with asyncio.timeout(within_s):
                answer = await response
        except TimeoutError:
            response.cancel()
            raise Unavailable(AWAY, retry_after_s=RETRY_AFTER_S) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                response.cancel()
                raise
            raise Unavailable(AWAY, retry_after_s=RETRY_AFTER_S) from None  # Serve cancelled the call
        except (RayError, RayServeException) as error:
            raise Unavailable(AWAY, retry_after_s=RETRY_AFTER_S) from error
        return decode_reply(command, answer)


class SnapshotFeed:
    """The newest snapshot in this gateway, and its subscribers."""

    def __init__(self, link: ControlLink, file: Path, report: Callable[[], GatewayReport]) -> None:
        """`file`: keeps the newest snapshot. `report`: makes this gateway's report."""
        self._link = link
        self._file = file
        self._report = report
        self._takers: list[Callable[[Snapshot], None]] = []
        self._heard = asyncio.Event()  # the control plane answered the latest poll
        self.problem: str | None = None  # why the latest poll was not answered; None: it was
        self._told: GatewayReport | None = None
        self._numbers = count(1)  # of reports: calls may overtake each other
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_new = True
        self._is_kept = True  # the file has `current`
        self.on_answer: Callable[[], None] = lambda: None  # called after each poll that was answered
        self._confirmed = -math.inf  # when the control plane last confirmed ours as the newest
        self.current: Snapshot | None = None  # None: none was ever seen, neither here nor in the file

    @property
    def age_s(self) -> float:
        """Seconds since the control plane confirmed `current` as the newest; infinite if it never did."""
        return time.monotonic() - self._confirmed

    def subscribe(self, take: Callable[[Snapshot], None]) -> None:
        """Call `take` with each new snapshot, and at once with the current one."""
        self._takers.append(take)
        if self.current is not None:
            take(self.current)

    def start(self) -> None:
        """Poll until `close`. Must be called outside any request."""
        self._spawn(self._poll())

    async def first(self, within_s: float) -> None:
        """Wait for the control plane's first snapshot; use the file if there is none in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._heard.wait()
        if self.current is None and (found := await asyncio.to_thread(_read, self._file)) is not None:
            kept, age_s = found
            logger.warning("the control plane is away; this gateway starts from snapshot %d", kept.version)
            self._confirmed = time.monotonic() - age_s
            self._take(kept)

    @property
    def is_connected(self) -> bool:
        """Whether the control plane answered the latest poll."""
        return self._heard.is_set()

    async def connected(self) -> None:
        """Wait a moment if the control plane cannot be reached. Raises Unavailable."""
        try:
            async with asyncio.timeout(RECONNECT_S):
                await self._heard.wait()
        except TimeoutError:
            raise Unavailable(AWAY, retry_after_s=RETRY_AFTER_S) from None

    def tell(self) -> None:
        """Send the report now instead of with the next poll, because it may have changed."""
        if self._heard.is_set() and self._report() != self._told:
            self._spawn(self._tell())

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def leave(self) -> None:
        """Close, and tell the control plane, so that it does not wait for this gateway."""
        self.close()
        if self._heard.is_set():
            command = self._command(replace(self._report(), is_leaving=True), after=0, wait_s=0.0)
            with contextlib.suppress(ServeError):
                await self._link.call(command, ITSELF, LEAVE_S)

    async def _poll(self) -> None:
        while True:
            try:
                found = await self._ask(self._wait_s)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._note_failure(error)
                await asyncio.sleep(PAUSE_S)
                continue
            if not self._heard.is_set():
                logger.info("the control plane answers")
                self._heard.set()
            self._confirmed = time.monotonic()
            if found is not None:
                self._take(found)
            await self._keep(is_new=found is not None)
            self.on_answer()

    @property
    def _wait_s(self) -> float:
        """0 right after a failure, since the control plane may be back, but without a newer snapshot."""
        return POLL_S if self._heard.is_set() else 0.0

    async def _tell(self) -> None:
        with contextlib.suppress(ServeError):
            await self._ask(0.0)

    async def _ask(self, wait_s: float) -> Snapshot | None:
        """The newer snapshot; None if ours is still the newest."""
        after = 0 if self.current is None or self._is_new else self.current.version
        report = self._report()
        self._told = report
        command = self._command(report, after, wait_s)
        found = await self._link.call(command, ITSELF, wait_s + SLACK_S)
        self.problem = found.problem or None
        if found.version == after:
            return None
        self._is_new = False  # a snapshot from the file is replaced whatever its version
        return replace(found, problem="")

    def _command(self, report: GatewayReport, after: int, wait_s: float) -> WatchSnapshot:
        return WatchSnapshot(report=report, after=after, wait_s=wait_s, number=next(self._numbers))

    def _take(self, snapshot: Snapshot) -> None:
        self.current = snapshot
        for take in self._takers:
            try:
                take(snapshot)
            except Exception:  # a failing subscriber does not affect the others
                logger.exception("snapshot %d is not taken whole", snapshot.version)

    async def _keep(self, *, is_new: bool) -> None:
        """Write the current snapshot to the file, or only update the file's time; retries after a failure."""
        if self.current is None or (self._is_kept and not is_new):
            await asyncio.to_thread(_confirm, self._file)
            return
        was_kept, self._is_kept = self._is_kept, False
        try:
            await asyncio.to_thread(_write, self._file, self.current)
            self._is_kept = True
        except OSError as error:
            if was_kept or is_new:
                logger.warning("snapshot %d is not kept: %s", self.current.version, error)

    def _note_failure(self, error: Exception) -> None:
        self.problem = error.message.removesuffix("; try again") if isinstance(error, ServeError) else AWAY
        if self._heard.is_set():
            logger.warning("the control plane does not answer: %s", error)
        self._heard.clear()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class RemoteManagement:
    """An `api.backend.Management` over the control plane of this cluster."""

    def __init__(self, link: ControlLink, feed: SnapshotFeed) -> None:
        self._link = link
        self.feed = feed

    @property
    def problem(self) -> str | None:
        return self.feed.problem

    async def do(self, command: Command[ReplyT], caller: Caller) -> ReplyT:
        await self.feed.connected()
        return await self.call(command, caller, COMMAND_S)

    async def call(self, command: Command[ReplyT], caller: Caller, within_s: float) -> ReplyT:
        """Like `do`, for the gateway itself: does not wait for a control plane that cannot be reached."""
        return await self._link.call(command, caller, within_s)


def _read(path: Path) -> tuple[Snapshot, float] | None:
    """The kept snapshot, and how many seconds ago it was last known to be the newest."""
    try:
        return _snapshot_decoder.decode(path.read_bytes()), max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("the kept snapshot %s is of no use: %s", path, error)
        return None


def _confirm(path: Path) -> None:
    """Update the time of the file that has the newest snapshot; a starting gateway reads this time."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _write(path: Path, snapshot: Snapshot) -> None:
    """Write the snapshot atomically, for this user's eyes only, because it contains digests of keys."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_encoder.encode(snapshot))
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
