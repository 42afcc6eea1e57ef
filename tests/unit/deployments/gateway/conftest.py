from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from serve_app.channel.receiver import Receiver
from serve_app.deployments.gateway import handover, routed_stream
from tests.support.routed import Gateway, until


@pytest.fixture
async def gateway(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    for module in (routed_stream, handover):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(module, "LAST_PAUSE_S", 0.01)
    receiver = await Receiver.start("127.0.0.1")
    gateway = Gateway(receiver)
    yield gateway
    for replica in gateway.all:
        await replica.close()
    await until(gateway.is_idle)
    await receiver.close()
