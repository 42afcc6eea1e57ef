"""One server with a control plane for all tests of this folder that need Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the shared server come first: those with a server of their own replace it on the cluster."""
    here = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ours = sorted((items[place] for place in here), key=_has_own_server)
    for place, item in zip(here, ours, strict=True):
        items[place] = item


def _has_own_server(item: pytest.Item) -> bool:
    return "controlled_server" not in getattr(item, "fixturenames", ())
