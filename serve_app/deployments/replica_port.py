"""Restricts Serve's second transport between deployments to this machine.

In Serve 2.60, each replica has a gRPC server on every interface. That server unpickles whatever it receives,
without any authentication, so anyone who reaches its port can run code. Our calls use Ray's own transport
(`environment`), so the gRPC server is not needed. Serve has no setting for the server's address.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

import ray
from ray.serve._private import replica
from ray.serve._private.constants import RAY_SERVE_PROXY_USE_GRPC, RAY_SERVE_USE_GRPC_BY_DEFAULT

LOOPBACK: Final = "127.0.0.1:0"

_bind = replica.add_port_to_grpc_server


def keep_private() -> None:
    """Make this replica's server listen on loopback. To be called in a constructor, before Serve starts it.

    If the operator has chosen that transport, for a cluster of several nodes, the server is left alone.
    """
    is_used = RAY_SERVE_USE_GRPC_BY_DEFAULT or RAY_SERVE_PROXY_USE_GRPC
    if is_used and not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        return
    replica.add_port_to_grpc_server = _on_loopback


def _on_loopback(server: Any, address: str) -> int:
    port: int = _bind(server, LOOPBACK)
    return port
