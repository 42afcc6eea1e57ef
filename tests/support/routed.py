"""A gateway's route to replicas without a model that a test adds, steps, kills and takes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from serve_app.channel.receiver import Receiver
from serve_app.deployments.gateway.migrations import Migrations
from serve_app.deployments.gateway.poison_requests import PoisonRequests
from serve_app.deployments.gateway.route import Route
from serve_app.deployments.gateway.routed_stream import RoutedStream
from serve_app.types import TokenDelta
from tests.support.fake_replicas import FakeHandle, FakeReplica

WAIT_S = 60.0


class Gateway:
    """A route to replicas that a test adds and takes away."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.handle = FakeHandle(choose=lambda replicas: replicas[-1])
        self.returns = False
        self.poison_requests = PoisonRequests()
        self.migrations = Migrations()
        self.all: list[FakeReplica] = []
        self.route = self.new_route()

    def new_route(self, patience_s: float = WAIT_S) -> Route:
        return Route(
            self.handle,  # type: ignore[arg-type]
            self.receiver,
            self.poison_requests,
            lambda: self.handle.is_there,
            may_return=lambda: self.returns,
            patience_s=patience_s,
            migrations=self.migrations,
        )

    def add(self, name: str, weights: str = "w", *, runs: bool = False) -> FakeReplica:
        """A new replica, which Serve prefers from now on."""
        replica = FakeReplica(name, weights, runs=runs)
        self.handle.add(replica)
        self.all.append(replica)
        return replica

    def remove(self, replica: FakeReplica) -> None:
        self.handle.replicas.remove(replica)

    def kill(self, replica: FakeReplica) -> None:
        self.remove(replica)
        replica.kill()

    def is_idle(self) -> bool:
        """Whether nothing of any request is left."""
        calls = self.route._calls
        return not (self.receiver._inboxes or calls.open or calls.watching or self.route._replicas.waiting)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


async def get(stream: RoutedStream) -> list[TokenDelta]:
    return await asyncio.wait_for(stream.get(), WAIT_S)


async def rest(stream: RoutedStream) -> list[TokenDelta]:
    deltas: list[TokenDelta] = []
    while more := await get(stream):
        deltas += more
    return deltas


async def steps(replica: FakeReplica, stream: RoutedStream, count: int) -> list[TokenDelta]:
    """Let `replica` make `count` steps, one after the other, and read each."""
    await until(lambda: replica.running)
    deltas = []
    for _ in range(count):
        replica.go()
        deltas += await get(stream)
    return deltas
