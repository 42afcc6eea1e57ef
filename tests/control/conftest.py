"""One server with a control plane for all tests of this folder that need Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.control.server import Controlled, controlled, small_file
from tests.support.ray_cluster import Cluster


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def controlled_server(
    ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Controlled]:
    """demo-chat, declared; tests make endpoints beside it and delete them."""
    async with controlled(ray_cluster, small_file(), tmp_path_factory.mktemp("control")) as made:
        yield made
