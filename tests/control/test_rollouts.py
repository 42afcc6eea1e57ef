"""Rollouts and shadow traffic on Ray: real gateways, ledger and models, and an entity that fails by load."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

import pytest

from serve_app.endpoints.names import app_name
from serve_app.types.control import (
    CompareEntities,
    ComparisonReport,
    ConfigWanted,
    CreateEndpoint,
    EntityWanted,
    GetRollout,
    Guards,
    PutShadow,
    RolloutShown,
    RolloutState,
    StartRollout,
    UpdateState,
)
from tests.control.server import MODEL, Controlled, controlled, small_file
from tests.deploy.deployment import Raw, app_of, edited
from tests.support.ray_cluster import Cluster

pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

START = StartRollout(
    endpoint="talk", entity="new", steps=(50, 100), interval_s=2.0, guards=Guards(min_requests=10)
)


def with_a_narrow_version(raw: Raw) -> Raw:
    """A second version of the model that takes one request at a time and refuses all others."""

    def edit(made: Raw) -> None:
        second = copy.deepcopy(app_of(made, f"model-{MODEL}"))
        second["name"] = app_name(MODEL, "2")
        second["args"]["version"] = "2"
        second["args"]["engine"] |= {"max_sequences": 1, "max_waiting": 0}
        made["applications"].append(second)

    return edited(raw, edit)


async def test_a_shadow_changes_nothing_and_a_failing_entity_is_moved_back(
    ray_cluster: Cluster, tmp_path: Path
) -> None:
    async with controlled(ray_cluster, with_a_narrow_version(small_file()), tmp_path) as made:
        entities = tuple(
            EntityWanted(entity_name=MODEL, entity_version=version, name=name)
            for version, name in (("", "old"), ("2", "new"))
        )
        wanted = ConfigWanted(entities=entities, traffic={"old": 100, "new": 0})
        await made.do(CreateEndpoint(name="talk", config=wanted, is_provisioned=False))
        shown = await made.until_settled("talk")
        assert shown.update is UpdateState.NOT_UPDATING, shown.message

        alone = await talk(made)
        await made.do(PutShadow(endpoint="talk", shadow={"entity": "new", "percentage": 100}))
        report = await copied(made)
        assert await talk(made) == alone  # text and usage
        (copies,) = (each for each in report.entities if each.shadow)
        assert copies.entity == "new"
        assert copies.completion_tokens.mean == alone[1]["completion_tokens"]
        await made.do(PutShadow(endpoint="talk", shadow=None))

        await made.do(START)
        bad = await ended(made, at_once=8)
        assert bad.state is RolloutState.ROLLED_BACK, bad
        assert "a guard is broken: failed in" in bad.message
        await made.do(START)
        good = await ended(made, at_once=1)
        assert (good.state, good.step) == (RolloutState.DONE, 1), good


async def talk(made: Controlled) -> tuple[str, dict[str, int]]:
    """The answer of the endpoint, which is the same every time, and its usage."""
    answer = await made.server.chat("talk", max_tokens=6, temperature=0)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    usage = {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return body["choices"][0]["message"]["content"], usage


async def copied(made: Controlled) -> ComparisonReport:
    """Once the ledger has a finished copy."""
    async with asyncio.timeout(60):
        while True:
            await talk(made)
            report = await made.do(CompareEntities(endpoint="talk", since=0.0))
            if any(each.shadow and each.outcomes.get("finished") for each in report.entities):
                return report
            await asyncio.sleep(0.2)


async def ended(made: Controlled, at_once: int) -> RolloutShown:
    """The rollout at its end, under a load of so many requests at once, none of which fails."""

    async def ask() -> None:
        while True:
            await talk(made)

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        load = [group.create_task(ask()) for _ in range(at_once)]
        while (shown := await made.do(GetRollout(endpoint="talk"))).state is RolloutState.RUNNING:
            await asyncio.sleep(0.5)
        for task in load:
            task.cancel()
    return shown
