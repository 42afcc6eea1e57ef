"""The ports of a deploy file and of the proxies: their numbers, and how they are claimed."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from serve_app.api.protocol.family import Family
from serve_app.deployments import environment
from serve_app.deployments.launcher.claims import Claims
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.loopback import LOOPBACK


def address(config: dict[str, Any]) -> tuple[str, int]:
    """The address of the HTTP server in the deploy file."""
    options = config["http_options"]
    return str(options["host"]), int(options.get("port", 8000))


def rpc_port(config: dict[str, Any]) -> int | None:
    """The gateway's gRPC port, if it has one."""
    found = [(app.get("args") or {}).get("grpc_port") for app in config["applications"]]
    return next((port for port in found if port is not None), None)


def console_url(config: dict[str, Any]) -> str | None:
    """The console's URL for a browser on this machine; None if the console is switched off."""
    found = [(app.get("args") or {}).get("console") or {} for app in config["applications"]]
    if any(each.get("enabled") is False for each in found):
        return None
    host, port = address(config)
    return f"http://{reachable(host)}:{port}/console"


def v1(config: dict[str, Any]) -> Family:
    """The protocol of the gateway's paths below /v1."""
    found = [(app.get("args") or {}).get("v1_dialect") for app in config["applications"]]
    return Family(next((word for word in found if word is not None), Family.OPENAI))


def reachable(host: str) -> str:
    """An address of this machine at which `host` answers, as written in a URL."""
    return LOOPBACK if host in ("0.0.0.0", "::") else in_url(host)


def in_url(host: str) -> str:
    """A host or its address, as written in a URL."""
    return f"[{host}]" if ":" in host else host


def take(config: dict[str, Any], proxy: Mapping[str, int], claims: Claims) -> None:
    """Claim the ports of the file. Raises CannotServe for one that is taken, or is one of the `proxy`'s own.

    Proxies and gateways share their ports (SO_REUSEPORT) with any process of the same user. So two servers
    that start at once would both get these ports, and each would answer some of the other's clients.
    """
    host, port = address(config)
    for each in proxy.values():
        if each in (port, rpc_port(config)):
            raise CannotServe(f"the server's own proxy takes port {each}; choose another in the deploy file")
    _take(host, port, "http_options.port", claims)
    if (rpc := rpc_port(config)) is not None:
        _take(host, rpc, "args.grpc_port of the gateway", claims)


def _take(host: str, port: int, setting: str, claims: Claims) -> None:
    where = f"{in_url(host)}:{port}"
    if where not in claims:  # else we may listen there already
        _check(host, port, setting)
        claims.take(where, where, f"Stop it, or change {setting} in the deploy file.")


def _check(host: str, port: int, setting: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise CannotServe(
                f"{in_url(host)}:{port} cannot be used ({error.strerror}). Stop what listens there "
                f"(`ss -ltnp 'sport = :{port}'` names it), or change {setting} in the deploy file."
            ) from error


def haproxy_ports(claims: Claims) -> dict[str, int]:
    """The ports of HAProxy itself and of its fallback: the usual ones, or, if another cluster runs here, any
    free ones."""
    return {
        name: usual if _is_free(usual) and claims.tries(_own(usual)) else _any(claims)
        for name, usual in (("stats_port", 8404), ("metrics_port", 9101), ("fallback_port", 8500))
    }


def _any(claims: Claims) -> int:
    """A free port, which is claimed so that no other server chooses it too."""
    while not claims.tries(_own(port := environment.free_port())):
        continue
    return port


def _own(port: int) -> str:
    return f"{LOOPBACK}:{port}"


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return sock.connect_ex((LOOPBACK, port)) != 0
