"""What run-time endpoints cost: a gateway's start, a gateway's loop at a change, and the control plane.

    python benchmarks/many_endpoints.py [--counts 100 1000 10000] [--changes 20]

In process, without Ray: the real control plane on SQLite, and all that a gateway does with a snapshot on its
event loop, from the bytes of the reply to the bytes of its report. What Ray adds is not in it. A change makes
one more endpoint. Times are CPU seconds of the thread, so that a busy machine counts less.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from sqlalchemy.orm import Session

from serve_app.api.directory import Directory
from serve_app.channel.calls import decode_reply, encode_command, encode_reply
from serve_app.control.database.database import Database
from serve_app.control.endpoints import registry
from serve_app.control.endpoints.known import KnownEndpoints
from serve_app.control.endpoints.state import Config, Entity
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.gateway.control.catalogues import Catalogues
from serve_app.endpoints.catalogue import parse_catalogue
from serve_app.endpoints.endpoint import Endpoint, Kind
from serve_app.types import Caller
from serve_app.types.control import EntityWanted, Snapshot, WatchSnapshot

ITSELF = Caller(key_id="gateway", scopes=frozenset(), salt="")


class AnsweringBackend:
    """A `ServeBackend` as far as catalogues ask one: every model answers."""

    def __init__(self) -> None:
        self._apps: dict[str, int] = {}

    def watch(self, endpoint: Endpoint) -> None:
        for entity in endpoint.served_entities:
            self._apps[entity.app] = self._apps.get(entity.app, 0) + 1

    def serve(self, endpoint: Endpoint) -> None:
        pass

    def unwatch(self, endpoint: Endpoint) -> None:
        for entity in endpoint.served_entities:
            self._apps[entity.app] -= 1

    def answers(self, entity: Any) -> bool:
        return True

    def watches(self, entity: Any) -> bool:
        return True

    def is_ready(self, app: str) -> bool:
        return True

    def ready(self) -> tuple[str, ...]:
        return tuple(self._apps)


def add(session: Session, number: int) -> None:
    """An endpoint of a shared application, one of 50, that serves."""
    app = f"model-shared-{number % 50}"
    wanted = EntityWanted(entity_name=f"shared-{number % 50}", name="one")
    entity = Entity(wanted=wanted, model=wanted.entity_name, version="", app=app, spec=None)
    config = Config(version=1, entities=(entity,), traffic={"one": 100}, kind=Kind.PAY_PER_TOKEN.value)
    row = registry.add(
        session,
        name=f"endpoint-{number:06}",
        kind=Kind.PAY_PER_TOKEN,
        task=None,
        creator="",
        config=config,
        description="",
        tags={},
        ai_gateway={"rate_limits": [{"calls": 100, "key": "user", "renewal_period": "minute"}]},
        stored={},
    )
    registry.promote(session, row, task="llm/v1/chat")
    registry.settle(session, row)


def fill(session: Session, count: int) -> None:
    for number in range(count):
        add(session, number)


def took(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this thread, and what `work` returns."""
    began = time.thread_time()
    found = work()
    return time.thread_time() - began, found


async def measure(count: int, changes: int, folder: Path) -> str:
    url = f"sqlite:///{folder / f'{count}.db'}"
    database = Database(url)
    await database.run(lambda session: fill(session, count))
    known = KnownEndpoints()

    def read(session: Session) -> tuple[float, dict[str, bytes]]:
        return took(
            lambda: {each.row.name: each.served for each in known.read(session).values() if each.served}
        )

    cold_s, endpoints = await database.run(read)
    directory = Directory()
    gateway = Catalogues("g", directory, cast("ServeBackend", AnsweringBackend()), 60.0)
    version = 1

    def take(reply: bytes) -> None:
        command = WatchSnapshot(report=gateway.report(), after=version, wait_s=10.0)
        gateway.take(decode_reply(command, reply))
        encode_command(WatchSnapshot(report=gateway.report(), after=version, wait_s=10.0), ITSELF)

    def start() -> None:
        gateway.declare(parse_catalogue({"endpoints": [{"name": "demo-chat"}]}))
        take(encode_reply(Snapshot(version=version, endpoints=endpoints)))

    start_s, _ = took(start)
    planes, gateways = [], []
    for change in range(changes):
        await database.run(lambda session: add(session, count + change))  # noqa: B023
        plane_s, endpoints = await database.run(read)
        version += 1
        reply = encode_reply(Snapshot(version=version, endpoints=endpoints))
        planes.append(plane_s)
        gateways.append(took(lambda: take(reply))[0])  # noqa: B023
    if len(directory) != count + changes + 1:
        raise AssertionError(f"{len(directory)} endpoints are in force")
    gateway.close()
    database.close()
    half = changes // 2
    figures = (start_s, max(gateways), sorted(gateways)[half], cold_s, max(planes), sorted(planes)[half])
    return f"| {count:,} | {len(reply):,} | " + " | ".join(f"{1000 * each:.1f}" for each in figures) + " |"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1_000, 9_900])
    parser.add_argument("--changes", type=int, default=20)
    arguments = parser.parse_args()
    print(
        "| endpoints | bytes of a snapshot | gateway: start ms | change, longest ms | change, median ms ",
        end="",
    )
    print("| control plane: first snapshot ms | later ones, longest ms | median ms |\n|" + "---|" * 8)
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.counts:
            print(await measure(count, arguments.changes, Path(folder)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
