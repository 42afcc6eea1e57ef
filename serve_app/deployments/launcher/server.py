"""The server's process: starts Ray, rolls out the deploy file, watches over the server, and lets it finish.

The process ends as soon as it has nothing left to do; the guardian then ends its descendants.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from serve_app.config import state_dir
from serve_app.config.secret_file import secret_file
from serve_app.deployments import environment, lean_ray
from serve_app.deployments.gateway import drain
from serve_app.deployments.launcher import ports
from serve_app.deployments.launcher.claims import Claims
from serve_app.deployments.launcher.control import Control, Note, database
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.gateways import gateway_entry
from serve_app.deployments.launcher.graceful_stop import finish
from serve_app.deployments.launcher.guardian import SAID
from serve_app.deployments.launcher.state import STATE_ADVICE, check_writable, kept
from serve_app.deployments.launcher.terminal import complain, say, show, waiting
from serve_app.endpoints.endpoint import Task
from serve_app.heap import collects_later

GRACE_S: Final = 600.0  # where neither the command nor the file says: the longest life of a request
WATCH_S: Final = 0.5
STOPPING: Final = "the server is stopping"
DATABASE_ADVICE: Final = (
    "Stop it, or give this server its own: with XDG_STATE_HOME, or by usage_dir or control.database_url "
    "of the gateway."
)
FAILED_DEPLOY: Final = (
    "The server goes on; `serve-app endpoints` shows what can answer. "
    "Deploy a corrected file, or the earlier one."
)
ORPHANED_GRACE_S: Final = 30.0  # without Ray's control store all other processes end after a minute


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    file: Path
    use_haproxy: bool = True
    grace_s: float | None = None  # None: as the file says


class Server:
    """One deploy file, served."""

    def __init__(self, options: Options, folder: Path, link: socket.socket) -> None:
        """`link`: the connection to the launcher, which gets `ready GRACE` and sends `stop`."""
        self._options = options
        self._folder = folder
        self._link = link
        self._config: dict[str, Any] = {}
        self._note: Note | None = None
        self._claims = Claims()  # also those of deploys that failed: a gateway may hold a port
        self._told_grace_s: float | None = None  # the last value sent to the launcher
        self._stops = False

    def run(self) -> int:
        """Run to the end. Returns 0 after a stop, and otherwise a status, whose reason has been printed."""
        try:
            self._start()
            return self._watch()
        except CannotServe as error:
            complain(str(error))
        except Exception as error:
            kept = _keep(traceback.format_exc())
            complain(f"an unexpected error: {type(error).__name__}: {error}{kept}")
        finally:
            if self._note is not None:
                self._note.remove()
        return SAID

    def _start(self) -> None:
        started = time.monotonic()
        proxy, proxy_ports = environment.PLAIN, {}
        if self._options.use_haproxy:
            proxy_ports = ports.haproxy_ports(self._claims)
            proxy = environment.haproxy(self._folder, **proxy_ports)
        with kept(STATE_ADVICE):
            token = {"RAY_AUTH_TOKEN_PATH": str(secret_file(state_dir() / "ray-token"))}
        # First: Ray reads it when it is imported.
        environment.apply(environment.COMMON | environment.PRIVATE | proxy | token)
        os.environ[drain.FOLDER] = str(self._folder)
        lean_ray.start_template(self._folder)
        with collects_later():  # reading the file imports Ray
            self._config = config = read(self._options.file)
        check_writable(config)
        self._take(config, proxy_ports)
        host, _ = ports.address(config)
        serve_host = environment.listen(self._folder, host, ports.v1(config))
        say(f"starting Ray ... ({time.monotonic() - started:.1f} s)")
        with collects_later():
            from ray.serve.schema import ServeDeploySchema

            from serve_app.deployments.launcher import ray_cluster
            from serve_app.deployments.launcher.deploy import roll_out

        # Not inside `waiting`, which has a thread: Ray runs Python between fork and exec here.
        ray_cluster.start(ServeDeploySchema.model_validate(config), serve_host)
        # Ray would end this process. But a signal to every process of a container is meant for the launcher.
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: None)
        say(f"Ray runs ({time.monotonic() - started:.1f} s)")
        with waiting("starting the applications"):
            roll_out(config, say, cancelled=_lost, started=started)
        self._take_deploys()
        self._tell_ready(time.monotonic() - started)

    def _take_deploys(self) -> None:
        control = Control(self._folder, self._deploy)
        _, port = ports.address(self._config)
        file = str(self._options.file.resolve())
        self._note = Note(port, str(control.path), file)
        self._note.write()

    def _take(self, config: dict[str, Any], proxy: Mapping[str, int]) -> None:
        """Claim the ports and the database of `config`. Raises CannotServe if another server has one."""
        ports.take(config, proxy, self._claims)
        if own := database(config):
            # Two control planes would run each other's endpoints, and miss keys that the other revokes.
            self._claims.take(f"database {own}", "the control plane's database", DATABASE_ADVICE)

    def _deploy(self, file: str, text: str, tell: Callable[[str], None]) -> None:
        """Deploy another file over this one. Runs beside `_watch`. Raises CannotServe."""
        from serve_app.deployments.deploy_file.file import DeployFileError, parse
        from serve_app.deployments.launcher.deploy import roll_out

        def report(words: str) -> None:
            say(words)
            tell(words)

        if self._stops:
            raise CannotServe(STOPPING)
        try:
            config = parse(text).raw
        except DeployFileError as error:
            raise CannotServe(f"{file} cannot be deployed:\n{error}") from error
        fixed(self._config, config)
        self._take(config, {})
        say(f"deploying {file} ...")
        try:
            roll_out(config, report, cancelled=lambda: STOPPING if self._stops else _lost())
        except CannotServe as error:
            complain(f"{file}: {error}")
            raise CannotServe(f"{error}\n{FAILED_DEPLOY}") from error
        self._config = config
        self._tell_launcher()
        say(f"{file} is served")

    def _tell_launcher(self) -> None:
        """Report to the launcher that it may send `stop`, and how long it must then wait; the last report
        counts."""
        if self._grace_s != self._told_grace_s:  # the launcher reads at a stop alone
            self._link.sendall(f"ready {self._grace_s}\n".encode())
            self._told_grace_s = self._grace_s

    def _tell_ready(self, seconds: float) -> None:
        self._tell_launcher()
        host, port = ports.address(self._config)
        show(f"\nserve: ready on http://{ports.in_url(host)}:{port} after {seconds:.1f} s. Try:\n\n")
        show(f"{_example(host, port, chat_endpoint(self._config))}\n\n")
        if (rpc := ports.rpc_port(self._config)) is not None:
            show(f"KServe v2 over gRPC: {ports.reachable(host)}:{rpc}\n\n")
        if (console := ports.console_url(self._config)) is not None:
            show(f"In a browser: {console}\n\n")
        show("Ctrl-C stops it.\n")

    @property
    def _grace_s(self) -> float:
        if self._options.grace_s is not None:
            return self._options.grace_s
        gateway = gateway_entry(self._config)
        found = gateway.get("graceful_shutdown_timeout_s")
        return GRACE_S if found is None else float(found)

    def _watch(self) -> int:
        """Wait until the launcher sends `stop` or Ray dies."""
        while True:
            asked, _, _ = select.select([self._link], [], [], WATCH_S)
            if asked:
                self._finish(self._grace_s)
                return 0
            if (what := _lost()) is not None:
                complain(f"{what} The server cannot go on without it; start it again.")
                self._finish(min(self._grace_s, ORPHANED_GRACE_S))
                return SAID

    def _finish(self, grace_s: float) -> None:
        self._stops = True
        _, port = ports.address(self._config)
        rpc = ports.rpc_port(self._config)
        cut = finish(self._folder, {port} if rpc is None else {port, rpc}, grace_s)
        if cut is not None:
            complain(cut)


def fixed(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises CannotServe for a change between two deploy files that needs a restart."""
    before, after = (
        {"proxy_location": each.get("proxy_location"), **each["http_options"]} for each in (old, new)
    )
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            field = name if name == "proxy_location" else f"http_options.{name}"
            raise CannotServe(
                f"{field} is {after.get(name)!r}, and the server runs with {before.get(name)!r}. "
                "A change of it takes a restart: stop the server, and start it with this file."
            )


def read(path: Path) -> dict[str, Any]:
    """The values of a deploy file without errors. Raises CannotServe; warnings go to the terminal."""
    from serve_app.deployments.deploy_file.file import DeployFileError, load

    try:
        file = load(path)
    except DeployFileError as error:
        raise CannotServe(f"{path} cannot be deployed:\n{error}") from error
    for warning in file.warnings:
        complain(warning.of(path))
    return file.raw


def _lost() -> str | None:
    from serve_app.deployments.launcher import ray_cluster

    what = ray_cluster.lost()
    return None if what is None else f"{what} died; its log is in {ray_cluster.logs()}."


def _keep(text: str) -> str:
    """Write a traceback to a file, and print its path."""
    path = state_dir() / "serve-error.log"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        return f"\n{text}"
    return f"\nAll of it is in {path}."


def chat_endpoint(config: dict[str, Any]) -> str:
    """The name of the file's first chat endpoint, or the demo model's name if there is none."""
    endpoints = (gateway_entry(config).get("user_config") or {}).get("endpoints") or ()
    return next((each["name"] for each in endpoints if each.get("task", Task.CHAT) == Task.CHAT), "demo-chat")


def _example(host: str, port: int, model: str) -> str:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    return (
        f"  curl -N http://{ports.reachable(host)}:{port}/v1/chat/completions \\\n"
        f"    -H 'Content-Type: application/json' \\\n    -d '{json.dumps(body)}'"
    )
