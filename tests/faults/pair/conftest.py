"""One pair of replicas for all tests of this folder, which freeze them, kill them and take them away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import Pair, model_config, replica_pair, wide_demo


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def deployed(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    config = model_config(wide_demo(folder / "model"))
    async with replica_pair(ray_cluster.url, config, folder / "usage") as pair:
        yield pair
