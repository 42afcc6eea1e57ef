"""A key on Ray, with two gateways: in force on both within seconds, and so is its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pytest

from serve_app.types.control import CreateKey, RevokeKey
from tests.control.server import MODEL, Controlled, controlled, small_file
from tests.deploy.deployment import Raw, edited, gateway_of
from tests.support.gateway import CHAT, bearer, chat_body
from tests.support.invariants import WAIT_S
from tests.support.ray_cluster import Cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.full,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

WITHIN_S: Final = 5.0
LASTS_S: Final = 2.0  # for which the new answer must stay: no gateway goes back


def two_gateways() -> Raw:
    def edit(raw: Raw) -> None:
        gateway_of(raw)["num_replicas"] = 2

    return edited(small_file(), edit)


async def statuses(made: Controlled, gateways: Collection[str], key: str) -> list[int]:
    """What each gateway, asked at its own address, and the common address say to a request with `key`."""
    body = chat_body(model=MODEL, max_tokens=1)

    async def ask(url: str) -> int:
        answer = await made.server.client.post(f"{url}{CHAT}", json=body, headers=bearer(key))
        return answer.status_code

    common = str(made.server.client.base_url).rstrip("/")
    return await asyncio.gather(*(ask(url) for url in (*gateways, common)))


async def changed(made: Controlled, gateways: Collection[str], key: str, status: int) -> float:
    """Seconds until each gateway gives `status` to every request with `key`."""
    began = since = time.monotonic()
    async with asyncio.timeout(WAIT_S):
        while time.monotonic() < since + LASTS_S:
            if set(await statuses(made, gateways, key)) != {status}:
                since = time.monotonic()
            await asyncio.sleep(0.05)
    return since - began


async def test_a_revoked_key_stops_on_every_gateway(ray_cluster: Cluster, tmp_path: Path) -> None:
    async with controlled(ray_cluster, two_gateways(), tmp_path) as made:
        gateways = (await made.server.gateways()).values()
        assert len(set(gateways)) == 2
        admin = await made.do(CreateKey(name="admin", scopes=("inference", "manage")))
        alice = await made.do(CreateKey(name="alice"))
        assert await changed(made, gateways, alice.secret, 200) < WITHIN_S
        await made.do(RevokeKey(id="alice"))
        assert await changed(made, gateways, alice.secret, 401) < WITHIN_S
        assert set(await statuses(made, gateways, admin.secret)) == {200}
