"""The ingress as a Serve deployment: the api layer's ASGI app over `ServeBackend`, and gRPC beside it.

Each replica has its own gRPC port. Serve's own gRPC proxies are not used: they listen on every interface, do
not reveal the caller's address, and read messages before keys are checked (docs/decisions/serving-grpc.md).
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from typing import Any, Final

from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle

from serve_app.accounts.accounts import Accounts
from serve_app.accounts.inference_table import InferenceTables
from serve_app.accounts.journal import Journal
from serve_app.api.admission.budget_reservation import cost
from serve_app.api.app import build_app
from serve_app.api.directory import Directory
from serve_app.api.services import Services, gateway_services
from serve_app.channel.ledger import settlements_decoder
from serve_app.channel.receiver import Receiver
from serve_app.config import GatewayConfig, default_usage_dir, state_dir
from serve_app.deployments.environment import PUBLIC_HOST
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.gateway.control.catalogues import Catalogues
from serve_app.deployments.gateway.control.live import RemoteLive
from serve_app.deployments.gateway.control.management import ControlLink, RemoteManagement, SnapshotFeed
from serve_app.deployments.gateway.control.shipper import Shipper
from serve_app.deployments.gateway.drain import DRAIN, FLUSH, DrainSocket
from serve_app.deployments.http10 import speak_http10
from serve_app.deployments.limiter import SharedQuota
from serve_app.deployments.logs import log_as_json, to_terminal, warnings_shown
from serve_app.deployments.memory import be_spared
from serve_app.deployments.replica_port import keep_private
from serve_app.endpoints.catalogue import CatalogueError, check_judges, judging, parse_catalogue
from serve_app.heap import map_large_blocks, settle
from serve_app.loopback import LOOPBACK, is_loopback_host
from serve_app.rpc.server import RpcServer
from serve_app.types import Usage, UsageRecord

logger = logging.getLogger(__name__)


RPC_DRAIN_S: Final = 60.0  # calls that still run when HTTP's answers are out
SNAPSHOT_FILE: Final = "snapshot.msgpack"
FIRST_SNAPSHOT_S: Final = 10.0  # for a control plane that starts too; then the kept snapshot is taken
FIRST_LOOK_S: Final = 30.0  # for a first check of all models; afterwards those that answered are served


class GatewayReplica:
    """Answers HTTP; use it through `serve.ingress()`, which calls `__serve_build_asgi_app__`."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: GatewayConfig, limiter: DeploymentHandle, control: DeploymentHandle | None = None
    ) -> None:
        """`control`: the control plane; None: endpoints and keys come from the deploy file alone."""
        log_as_json()
        be_spared()
        map_large_blocks()
        keep_private()
        speak_http10()
        self._config = config
        self._directory = Directory()
        self._accounts = Accounts(config, at_run_time=control is not None)
        app = str(serve.get_replica_context().app_name)
        self._receiver = await Receiver.start(LOOPBACK, app)
        self._backend = ServeBackend(self._receiver, config.restart_wait_s)
        self._catalogues = Catalogues(
            self._receiver.ticket.gateway, self._directory, self._backend, config.catalogue_wait_s
        )
        self._quota = SharedQuota(limiter)
        usage_dir = config.usage_dir or default_usage_dir()
        with warnings_shown(to_terminal):
            self._journal = Journal(usage_dir, on_closed=self._receiver.booked)
        self._tables = InferenceTables(
            config.inference_tables_dir or state_dir() / "inference-tables",
            retention_days=config.inference_tables_days,
        )
        self._control = None if control is None else self._follow(control)
        self._shipper = (
            None
            if self._control is None
            else Shipper(usage_dir, self._control, keep_days=config.usage_journal_days)
        )
        if self._shipper is not None:
            self._shipper.start()
        self._services: Services | None = None
        self._live: RemoteLive | None = None
        self._rpc: RpcServer | None = None
        self._rpc_listens = False
        self._drain_socket = await DrainSocket.open({DRAIN: self._drain, FLUSH: self._flush})

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Put the deploy file's catalogue into effect, at start and whenever it changes.

        A gateway does not start with a wrong catalogue (CatalogueError), or if its gRPC port is in use
        (OSError). A running gateway keeps its catalogue and reports the problem. Since Serve sends requests
        as soon as the start is over, the start includes a wait until the states of all models are known.
        """
        is_start = not self._catalogues.is_read
        try:
            catalogue = parse_catalogue(user_config)
            check_judges(catalogue, self._config.guardrails_model)
        except CatalogueError as error:
            if is_start:
                raise
            logger.error("the new endpoints are refused, the old ones stay:\n%s", error)
            self._directory.refused = True
            return
        self._catalogues.declare(catalogue)
        if is_start:
            with warnings_shown(to_terminal):
                if self._control is not None:
                    await self._control.feed.first(FIRST_SNAPSHOT_S)
                warn_of_judge(self._directory, self._config.guardrails_model)
        logger.info("serving %d endpoints", len(self._directory))
        if is_start:
            await self._backend.looked(FIRST_LOOK_S)
        if self._rpc is not None and self._config.grpc_port is not None and not self._rpc_listens:
            await self._rpc.start(http_host() or LOOPBACK, self._config.grpc_port)
            self._rpc_listens = True
        if is_start:
            settle()

    def _follow(self, control: DeploymentHandle) -> RemoteManagement:
        """Follow the control plane's snapshots."""
        link = ControlLink(control)
        kept = (self._config.usage_dir or state_dir()) / SNAPSHOT_FILE
        feed = SnapshotFeed(link, kept, self._catalogues.report)
        # Grants go first, so that no endpoint is ever without them.
        feed.subscribe(lambda snapshot: self._directory.permit(snapshot.grants))
        feed.subscribe(lambda snapshot: self._directory.expect(snapshot.unready))
        feed.subscribe(self._accounts.take)
        self._accounts.snapshot_age_s = lambda: feed.age_s
        feed.subscribe(self._catalogues.take)
        self._catalogues.on_change = feed.tell
        feed.start()
        return RemoteManagement(link, feed)

    async def settle(self, payload: bytes) -> None:
        """Record the open requests of dead gateways: a list of `Settlement`.

        Replicas repeat this call until it succeeds; the journal's readers count each record only once.
        """
        for settlement in settlements_decoder.decode(payload):
            if settlement.gateway != self._receiver.ticket.gateway:  # ours are closed by us
                record = self._priced(settlement.record)
                self._journal.settled(record, settlement.part)

    def _priced(self, record: UsageRecord) -> UsageRecord:
        """The record with its cost added, at the endpoint's current price. A shadow copy costs nothing."""
        if record.shadow:
            return record
        endpoint = self._directory.named(record.endpoint)
        price = None if endpoint is None else endpoint.price
        if price is None:
            return record
        usage = Usage(
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            completion_tokens=record.completion_tokens - record.discarded_tokens,
            discarded_tokens=record.discarded_tokens,
        )
        return replace(record, cost=cost(price, usage), currency=price.currency)

    async def routes(self) -> list[str]:
        """The applications that this gateway routes to, which must not be removed."""
        return self._backend.routes()

    def __serve_build_asgi_app__(self) -> Any:
        # HAProxy passes no address on, and a client's `X-Forwarded-For` would be believed. The
        # one certainty is where Serve listens: on loopback every peer is this machine,
        # elsewhere peers are unknown, and without keys all are refused.
        peer = LOOPBACK if listens_on_loopback() else None
        services = gateway_services(
            self._backend,
            self._accounts,
            self._config,
            directory=self._directory,
            quota=self._quota,
            journal=self._journal,
            peer_of=lambda scope: peer,
            management=self._control,
            payloads=self._tables,
        )
        if self._control is not None and self._shipper is not None:
            feed, shipper = self._control.feed, self._shipper
            services.metrics.watch(
                snapshot_age_seconds=lambda: feed.age_s, usage_unshipped_bytes=lambda: shipper.behind
            )
        self._services = services
        if self._control is not None:
            self._live = RemoteLive(self._receiver.ticket.gateway, services.live.pulse, self._control)
            services.live.join(self._live)
            self._control.feed.on_answer = self._live.tell_again
        self._rpc = RpcServer(services)
        # Serve repeats the ids of requests, and makes one if the client sent none.
        return build_app(services, ids_are_echoed=True)

    async def _drain(self) -> int:
        """Admit nothing more; returns the number of answers under way."""
        if self._services is None:
            return 0
        self._services.admission.close()
        return self._services.admission.in_flight

    async def _flush(self) -> int:
        """Write the journal and the inference tables to the disk, when no answers are under way any more."""
        await asyncio.to_thread(self._journal.close)
        await asyncio.to_thread(self._tables.close)
        return 0

    async def __del__(self) -> None:
        if hasattr(self, "_drain_socket"):  # the constructor got that far
            if self._live is not None:
                self._live.close()
            if self._control is not None:
                await self._control.feed.leave()
            self._catalogues.close()
            if self._services is not None:
                self._services.copies.close()
                self._services.live.pulse.close()
            if self._rpc is not None:
                await self._rpc.stop(RPC_DRAIN_S)
            if self._drain_socket is not None:
                await self._drain_socket.close()
            await self._backend.close()
            await self._quota.close()
            self._journal.close()
            if self._shipper is not None:
                await self._shipper.close()
            self._tables.close()


def warn_of_judge(directory: Directory, guardrails_model: str | None) -> None:
    """If the server-wide judge cannot work, log why. In that case, requests that it should judge get 503."""
    if guardrails_model is None:
        return
    try:
        judging(guardrails_model, directory.named(guardrails_model))
    except ValueError as error:
        logger.warning("guardrails_model: %s; requests that it should judge get 503", error)


def listens_on_loopback() -> bool:
    """Whether HTTP is out of reach of other machines. An unknown address counts as reachable."""
    host = http_host()
    if host is None:
        logger.warning("the HTTP address of Serve is not known; it counts as public")
    return host is not None and is_loopback_host(host)


def http_host() -> str | None:
    """The address of HTTP; None if unknown.

    If our launcher runs HAProxy, that is HAProxy's address in the deploy file; Serve listens on loopback.
    """
    try:
        host = _get_global_client().http_config.host
    except Exception:
        return None
    if not isinstance(host, str):
        return None
    return os.environ.get(PUBLIC_HOST, host) if is_loopback_host(host) else host
