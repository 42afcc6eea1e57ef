"""A key on Ray, with two gateways: in force on both within seconds, and so is its end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

import pytest

from serve_app.types.control import CreateKey, RevokeKey
from tests.control.server import MODEL, Controlled, controlled, small_file
from tests.deploy.deployment import Raw, edited, gateway_of
from tests.support.gateway import CHAT, bearer, chat_body
from tests.support.ray_cluster import Cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.full,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

WITHIN_S: Final = 5.0
IN_A_ROW: Final = 20  # answers of one kind: the proxy gives both gateways their share


def two_gateways() -> Raw:
    def edit(raw: Raw) -> None:
        gateway_of(raw)["num_replicas"] = 2

    return edited(small_file(), edit)


async def changed(made: Controlled, key: str, status: int) -> float:
    """Seconds until every request with `key` has `status`: so many in a row, of which the first tells."""
    began = first = time.monotonic()
    count = 0
    while count < IN_A_ROW:
        body = chat_body(model=MODEL, max_tokens=1)
        answer = await made.server.client.post(CHAT, json=body, headers=bearer(key))
        if answer.status_code == status:
            count += 1
        else:
            count, first = 0, time.monotonic()
            assert first - began < 60, answer.text
            await asyncio.sleep(0.05)
    return first - began


async def test_a_revoked_key_stops_on_every_gateway(ray_cluster: Cluster, tmp_path: Path) -> None:
    async with controlled(ray_cluster, two_gateways(), tmp_path) as made:
        await made.do(CreateKey(name="admin", scopes=("inference", "manage")))
        alice = await made.do(CreateKey(name="alice"))
        assert await changed(made, alice.secret, 200) < WITHIN_S
        await made.do(RevokeKey(id="alice"))
        assert await changed(made, alice.secret, 401) < WITHIN_S
