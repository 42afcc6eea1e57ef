"""deploy/provisioned.yaml: bought throughput beside an endpoint for everybody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.deploy.answers import completion, every_endpoint_answers, whole
from tests.deploy.deployment import Deployed, deploy_file, deployed
from tests.support.ray_cluster import Cluster

pytestmark = [
    pytest.mark.full,  # budgets are in tests/unit/api/admission, bought replicas in tests/control
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(ray_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployed]:
    usage: Path = tmp_path_factory.mktemp("usage")
    async with deployed(ray_cluster, deploy_file("provisioned"), usage) as server:
        yield server


async def test_every_endpoint_answers(server: Deployed) -> None:
    await every_endpoint_answers(server, {"support-bot", "demo-chat"})


async def test_what_was_bought_is_the_budget_of_all_callers_together(server: Deployed) -> None:
    answer = await server.chat("support-bot", max_tokens=4)
    assert answer.headers["x-ratelimit-limit-tokens"] == str(2000 * 30)
    assert "x-ratelimit-limit-requests" not in answer.headers
    beside = await server.chat("demo-chat", max_tokens=4)
    assert beside.headers["x-ratelimit-limit-requests"] == "600"


async def test_replicas_that_were_bought_answer_their_endpoint_alone(server: Deployed) -> None:
    own = await server.engine_of("bought-support-bot")
    other = await server.engine_of("model-demo-chat")
    await whole(server.client, completion("support-bot", max_tokens=9))
    assert (await server.engine_of("bought-support-bot")).generated_tokens >= own.generated_tokens + 9
    assert (await server.engine_of("model-demo-chat")).generated_tokens == other.generated_tokens
