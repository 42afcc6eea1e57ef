"""The ingress as a Serve deployment: the api layer's ASGI app over `ServeBackend`."""

from __future__ import annotations

import ipaddress
import logging
from typing import Any

from ray.serve.context import _get_global_client

from serve_app.accounts.keys import StaticAccounts
from serve_app.api.app import build_app
from serve_app.channel.receiver import Receiver
from serve_app.config import GatewayConfig
from serve_app.deployments.backend import LOOPBACK, ServeBackend
from serve_app.deployments.logs import log_as_json

logger = logging.getLogger(__name__)


class GatewayReplica:
    """Answers HTTP; use it through `serve.ingress()`, which calls `__serve_build_asgi_app__`."""

    async def __init__(self, config: GatewayConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        log_as_json()
        self._backend = ServeBackend(config.models, await Receiver.start(LOOPBACK))
        self._config = config

    def __serve_build_asgi_app__(self) -> Any:
        # HAProxy passes no address on, and a client's `X-Forwarded-For` would be believed. The
        # one certainty is where Serve listens: on loopback every peer is this machine,
        # elsewhere nobody is known, and without keys nobody is served.
        peer = LOOPBACK if listens_on_loopback() else None
        return build_app(
            self._backend,
            StaticAccounts(self._config),
            self._config,
            peer_of=lambda scope: peer,
            ids_are_echoed=True,  # by Serve, which also makes one where the client sent none
        )

    async def __del__(self) -> None:
        if hasattr(self, "_backend"):  # the constructor got that far
            await self._backend.close()


def listens_on_loopback() -> bool:
    """Whether Serve's HTTP port is out of reach for other machines.

    Unknown counts as reachable.
    """
    try:
        host = _get_global_client().http_config.host
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except Exception:
        logger.warning("the HTTP address of Serve is not known; it counts as public")
        return False
