"""The template: a process with the modules of Ray, Serve and the gateway, whose copies become workers.

A fresh Python process takes a second of CPU to import what a worker needs, and a server has a dozen workers.
A copy (`fork`) has these modules in milliseconds, and shares their memory. The template imports while Ray
starts. It never connects to Ray, and has one thread. It does not load torch, which gateways do not have.

Depends on how Ray starts workers (see `worker_entry.py`), but not on the purpose of the workers.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

from serve_app.deployments.lean_ray import worker_entry
from serve_app.deployments.processes import die_with_parent, fork
from serve_app.heap import collects_later

SOCKET_FILE: Final = "workers.sock"
BACKLOG: Final = 128  # workers that wait while the template still imports
MODULES: Final = (
    "ray.serve._private.controller",
    "ray.serve._private.proxy",
    "ray.serve._private.replica",
    "serve_app.deployments.build",
    "serve_app.deployments.gateway.replica",
    "serve_app.deployments.control.replica",
)
NO_JOB: Final = "ffffffff"  # in Ray's words: the worker may be given to any job
READ_S: Final = 10.0  # for a request, which `worker_entry` sends at once
GO_S: Final = 10.0
_MAX_REQUEST: Final = 16 * 2**20


def start(folder: Path) -> None:
    """Start the template below this process, with its socket in `folder`.

    From then on, Ray's workers are copies of the template; see `worker_entry`. This process must have only
    one thread, must have Ray's settings in its environment, and must not have loaded Ray.
    """
    if "ray" in sys.modules:
        raise RuntimeError("the template must be started before Ray is imported")
    server = os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / SOCKET_FILE))
    listener.listen(BACKLOG)
    with listener:
        fork(lambda: _serve(listener, server))
    os.environ[worker_entry.SOCKET] = str(folder / SOCKET_FILE)


def _serve(listener: socket.socket, server: int) -> int:
    """Copy this process for every request, until the process `server` ends."""
    die_with_parent(server)
    _keep_only(listener)
    # Ray's library reads these when it is loaded. They differ for each worker, and are missing here.
    os.environ["RAY_JOB_ID"] = NO_JOB
    os.environ["RAY_RAYLET_PID"] = str(server)  # workers end with this process; the server watches the raylet
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads, which copies would not have
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes note of copies that ended
    with collects_later():
        _import()
    if not _draws_differ():
        print("the template's copies would draw the same ids: workers start anew", file=sys.stderr)
        return 1
    gc.collect()
    gc.freeze()  # a collection in a copy leaves the shared pages alone
    while True:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError, ValueError):
            link.settimeout(READ_S)
            request, streams = _read(link)
            try:
                if threads() == 1 and os.fork() == 0:
                    listener.close()
                    _become(link, request, streams)
            finally:
                for each in streams:
                    os.close(each)


def _import() -> None:
    """Import what workers need, without drawing from the id generator of Ray's library.

    The generator is seeded when it is first used, so copies made after that would all draw the same ids. Ray
    draws an id for each actor class when the class is created; here, the system provides these ids.
    """
    import ray.actor

    drawn = ray.actor.ActorClassID
    ray.actor.ActorClassID = _SystemDraws
    try:
        for name in MODULES:
            importlib.import_module(name)
    finally:
        ray.actor.ActorClassID = drawn
    _serve_by_events()


def _serve_by_events() -> None:
    """Let Serve's replicas and proxies run `EventServer`, in place of uvicorn's own server."""
    import uvicorn

    from serve_app.deployments.lean_ray.event_server import EventServer

    uvicorn.Server = EventServer  # type: ignore[misc]


class _SystemDraws:
    """Stands in for `ActorClassID` in the modules that make classes of actors."""

    @staticmethod
    def from_random() -> Any:
        from ray._raylet import ActorClassID

        return ActorClassID(os.urandom(ActorClassID.size()))


def _draws_differ() -> bool:
    """Whether two copies draw different ids; found out by trying."""
    drawn = []
    for _ in range(2):
        reading, writing = os.pipe()

        def draw(to: int = writing) -> int:
            from ray._raylet import WorkerID

            os.write(to, WorkerID.from_random().binary())
            return 0

        fork(draw)
        os.close(writing)
        drawn.append(os.read(reading, 1024))
        os.close(reading)
    return drawn[0] != drawn[1] and all(drawn)


def threads() -> int:
    """The number of threads here, also of libraries. A copy has only one; locks of others stay held."""
    return len(os.listdir("/proc/self/task"))


def _read(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request of `worker_entry`, and its standard streams."""
    head, streams, _, _ = socket.recv_fds(link, 4, 3)
    size = int.from_bytes(head, "big")
    if len(head) < 4 or len(streams) != 3 or size > _MAX_REQUEST:
        raise ValueError("this is no request for a worker")
    body = b""
    while len(body) < size:
        part = link.recv(size - len(body))
        if not part:
            raise ValueError("the request ends early")
        body += part
    found: dict[str, Any] = json.loads(body)
    return found, list(streams)


def _become(link: socket.socket, request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run Ray's program for a worker in this process, as a fresh interpreter would."""
    code = 1
    try:
        if _is_wanted(link):
            link.close()
            for number, each in enumerate(streams):
                os.dup2(each, number)
                os.close(each)
            _as_new(request)
            program, *_ = sys.argv = request["arguments"]
            sys.path[0] = os.path.dirname(program)
            runpy.run_path(program, run_name="__main__")
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        _exit(code)


def _is_wanted(link: socket.socket) -> bool:
    """Report the copy to `worker_entry`; False if `worker_entry` has started the worker itself."""
    try:
        link.settimeout(GO_S)
        link.sendall(worker_entry.COPIED)
        return link.recv(1) == worker_entry.GO
    except OSError:
        return False


def _as_new(request: dict[str, Any]) -> None:
    """Give this process the environment of `worker_entry`, and reset the rest to that of a fresh Python."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    with contextlib.suppress(OSError):
        os.nice(request["nice"] - os.nice(0))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCHLD):
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # otherwise all copies draw the same numbers; `random` reseeds itself


def _exit(code: int) -> NoReturn:
    """End like an interpreter, but without returning into the template's code."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _keep_only(listener: socket.socket) -> None:
    """Close all files but the standard streams and `listener`: EOF in some shows that the server ended."""
    kept = listener.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
