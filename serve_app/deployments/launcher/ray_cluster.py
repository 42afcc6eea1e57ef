"""The private Ray cluster of a launcher: starts it, with helpful errors, and checks that it is alive."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.lean_ray import lean_node
from serve_app.loopback import LOOPBACK

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES: Final = 200 * 2**20  # carries prompts, not weights
KILL_S: Final = 10.0  # for the end of processes that were killed
LITTLE_BYTES: Final = 100 * 2**20  # Ray's logs of an hour need some of it
_TOO_LATE: Final = "timed out during startup"  # in Ray's words
VITAL: Final = {  # Ray's name of a process -> what it is, for people
    "gcs_server": "Ray's control store (gcs_server)",
    "raylet": "Ray's node manager (raylet)",
}


def start(schema: Any, host: str) -> None:
    """Start Ray and Serve in this process and its children. Raises CannotServe.

    `schema`: ServeDeploySchema. `host`: the host that Serve itself listens at, which need not be HAProxy's.
    """
    from ray import serve

    try:
        start_ray(
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level="warning",
            _node_ip_address=LOOPBACK,  # one node: no other machine needs Ray's own ports
        )
    except Exception as error:
        raise CannotServe(_why("Ray", error)) from error
    try:
        serve.start(
            proxy_location=schema.proxy_location,
            http_options=schema.http_options.model_dump() | {"host": host},
        )
    except Exception as error:
        raise CannotServe(_why("Ray Serve", error)) from error


def start_ray(**options: Any) -> Any:
    """Start Ray with `options` of `ray.init`; try again if starting its node took over 30 s, Ray's limit."""
    import ray

    others = _children()
    try:
        with lean_node():
            return ray.init(address="local", **options)
    except Exception as error:  # Ray has no class of its own for it
        _end(_children() - others)  # Ray forgets the processes of a node that did not come up
        if _TOO_LATE not in str(error):
            raise
        logger.warning("Ray was not up in time; it is started once more")
        ray.shutdown()
        with lean_node():
            return ray.init(address="local", **options)


def _children() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def _end(processes: set[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=KILL_S)


def lost() -> str | None:
    """The vital process that has died; None if all of them are alive."""
    import ray

    node = ray._private.worker._global_node
    if node is None:
        return "the connection to Ray"
    # No public function reports this: a driver is ended a minute later.
    return next((VITAL[name] for name, _ in node.dead_processes() if name in VITAL), None)


def logs() -> Path:
    """The folder of Ray's logs. Before Ray runs, this is a guess: the latest such folder on this machine."""
    import ray

    node = ray._private.worker._global_node
    return _folder() / "session_latest" / "logs" if node is None else Path(node.get_logs_dir_path())


def shortage() -> str:
    """A shortage on this machine that explains a failure; empty if no shortage is known."""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(_folder()).free
        if free < LITTLE_BYTES:
            return (
                f"\nOnly {free // 2**20} MiB are free at {_folder()}, where Ray writes: make room there, "
                "or name another folder in RAY_TMPDIR."
            )
    return ""


def _folder() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"


def _why(what: str, error: Exception) -> str:
    """The problem in one line, followed by what to do about it."""
    found = list(_causes(error))
    for each in found:
        if isinstance(each, OSError) and each.errno is not None and each.filename is not None:
            return (
                f"{what} cannot use {each.filename} ({each.strerror}). Its files are below {_folder()}: make "
                "room there and see that it is yours, or name another folder in RAY_TMPDIR."
            )
    text = " ".join(str(error).split()) or type(error).__name__
    if any(isinstance(each, TimeoutError) or "timed out" in str(each).lower() for each in found):
        return (
            f"{what} did not start in time. Is the machine very busy, or short of memory? Start again when "
            f"it is not; what {what} did is in {logs()}. It said: {_short(text)}{shortage()}"
        )
    return f"{what} did not start: {_short(text)}\nWhat it did is in {logs()}.{shortage()}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _short(text: str, most: int = 400) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."
