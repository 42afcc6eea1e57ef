"""What all routes of one gateway share, over HTTP and gRPC: models, endpoints, callers, budgets, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from starlette.types import Scope

from serve_app.api.admission.copies import Copies
from serve_app.api.admission.metering import Meter
from serve_app.api.admission.permits import Admission, BodyBytes
from serve_app.api.admission.stoppable import Stoppable
from serve_app.api.backend import (
    Accounts,
    Backend,
    Journal,
    Management,
    Payloads,
    PeerOf,
    Quota,
    ResponseStore,
)
from serve_app.api.context import context_of, peer_of
from serve_app.api.directory import CallerView, Directory
from serve_app.api.guard.guard import Guards
from serve_app.api.live.live import Live
from serve_app.api.live.pulse import Pulse
from serve_app.api.response_store.control import ResponsesOfControlPlane
from serve_app.api.response_store.memory import ResponsesInMemory
from serve_app.config import GatewayConfig
from serve_app.telemetry import Metrics

S = TypeVar("S")
T = TypeVar("T")

OFF_LOOP_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one gateway. `gateway_services` puts the parts together."""

    backend: Backend
    accounts: Accounts
    directory: Directory
    config: GatewayConfig
    metrics: Metrics
    meter: Meter
    admission: Admission
    peer_of: PeerOf
    live: Live
    management: Management | None = None  # None: this server has no control plane
    payloads: Payloads | None = None  # None: there are no inference tables
    responses: ResponseStore | None = None  # None: no response is kept
    bodies: BodyBytes = field(default_factory=BodyBytes)
    stoppable: Stoppable = field(default_factory=Stoppable)
    copies: Copies = field(default_factory=Copies)
    guards: Guards = field(default_factory=Guards)
    # One long body at a time: parsers hold the interpreter, so together they only take more memory.
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def endpoints(self, scope: Scope) -> CallerView:
        """The endpoints that the caller of this request may use."""
        return self.directory.seen_by(context_of(scope).caller)

    async def aside(self, size: int, work: Callable[[S], T], given: S) -> T:
        """Run work on `size` bytes, off the event loop if it would noticeably delay other requests."""
        if size < OFF_LOOP_BYTES:
            return work(given)
        async with self.parsing:
            return await asyncio.to_thread(work, given)


def gateway_services(
    backend: Backend,
    accounts: Accounts,
    config: GatewayConfig,
    *,
    directory: Directory,
    quota: Quota,
    journal: Journal,
    peer_of: PeerOf = peer_of,
    management: Management | None = None,
    payloads: Payloads | None = None,
) -> Services:
    """The services of one gateway, with its metrics connected to everything that they count.

    `peer_of` finds the client's address behind a proxy.
    """
    metrics = Metrics(backend.stats)
    meter = Meter(quota, journal, usage_required=config.usage_required)
    admission = Admission(config.max_in_flight)
    metrics.catalogue(lambda: {each.name: [of.name for of in each.served_entities] for each in directory})
    metrics.watch(
        catalogue_refused=lambda: directory.refused,
        keys_refused=lambda: accounts.refused,
        bad_keys=lambda: accounts.bad_keys,
        endpoints_waiting=lambda: len(directory.waiting),
    )
    metrics.in_flight(lambda: admission.in_flight)
    metrics.migrations(backend.migrations)
    metrics.watch(usage_backlog=lambda: journal.waiting, usage_records_dropped=lambda: journal.dropped)
    if payloads is not None:
        metrics.watch(
            inference_table_backlog=lambda: payloads.waiting,
            inference_table_rows_dropped=lambda: payloads.dropped,
        )
    pulse = Pulse(metrics, meter.under_way, backend)
    metrics.on_answer = meter.on_begin = pulse.wake
    services = Services(
        backend,
        accounts,
        directory,
        config,
        metrics,
        meter,
        admission,
        peer_of,
        Live(pulse),
        management,
        payloads,
        _response_store(config, management),
    )
    admission.when_closed = services.copies.close
    return services


def _response_store(config: GatewayConfig, management: Management | None) -> ResponseStore | None:
    if not config.responses.keep:
        return None
    if management is None:
        return ResponsesInMemory(config.responses)
    return ResponsesOfControlPlane(management)
