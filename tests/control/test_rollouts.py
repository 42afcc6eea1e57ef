"""Rollouts and shadow traffic on Ray: real gateways, ledger and models, of which one is broken."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from serve_app.endpoints.rules import app_name
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
from tests.control.broken_model import HOLE, write_broken_model
from tests.control.server import MODEL, Controlled, controlled, small_file
from tests.deploy.deployment import Raw, app_of, edited
from tests.support.ray_cluster import Cluster

pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

VERSIONS: Final = {"old": "", "broken": "2", "good": "3"}  # name of an entity -> version of the model
FAILS: Final = 0.2  # of the requests, where the broken model has to answer them
CLIENTS: Final = 4
ENDED_S: Final = 120.0


def with_two_more_versions(raw: Raw, folder: Path) -> Raw:
    """The model once more as it is, and once with a hole."""
    write_broken_model(folder / "broken")

    def edit(made: Raw) -> None:
        app_of(made, "system")["args"].pop("control")  # its version 2 is another one
        for version, source in (("2", str(folder / "broken")), ("3", None)):
            another = copy.deepcopy(app_of(made, f"model-{MODEL}"))
            another["name"] = app_name(MODEL, version)
            another["args"] |= {"version": version} | ({} if source is None else {"source": source})
            made["applications"].append(another)

    return edited(raw, edit)


@dataclass
class Load:
    """What clients asked and got. Of their prompts, a share of FAILS has a hole."""

    statuses: dict[bool, list[int]] = field(default_factory=lambda: {False: [], True: []})  # by hole

    @asynccontextmanager
    async def running(self, made: Controlled, endpoint: str) -> AsyncIterator[None]:
        async def ask(chance: random.Random) -> None:
            while True:
                has_hole = chance.random() < FAILS
                messages = [{"role": "user", "content": f"Hi!{HOLE if has_hole else ''}"}]
                answer = await made.server.chat(endpoint, messages=messages, max_tokens=6)
                self.statuses[has_hole].append(answer.status_code)

        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(ask(random.Random(number))) for number in range(CLIENTS)]
            yield
            for client in clients:
                client.cancel()


async def test_a_broken_entity_is_moved_back_by_itself_and_a_good_one_gets_all(
    ray_cluster: Cluster, tmp_path: Path
) -> None:
    async with controlled(ray_cluster, with_two_more_versions(small_file(), tmp_path), tmp_path) as made:
        await create(made, "covered", is_covered=True)
        await create(made, "bare", is_covered=False)
        await check_shadow(made, "covered")

        load = Load()
        bad = await rolled_out(made, "covered", "broken", load)
        assert bad.state is RolloutState.ROLLED_BACK, bad
        assert "a guard is broken: failed in" in bad.message
        assert set(load.statuses[True] + load.statuses[False]) == {200}  # the old entity stood in each time

        load = Load()
        bad = await rolled_out(made, "bare", "broken", load)
        assert bad.state is RolloutState.ROLLED_BACK, bad
        assert set(load.statuses[False]) == {200}
        assert set(load.statuses[True]) == {200, 500}  # half of them were the old entity's
        report = await made.do(CompareEntities(endpoint="bare", since=0.0))
        (broken,) = (each for each in report.entities if each.entity == "broken")
        assert broken.error_rate.low is not None
        assert broken.error_rate.high is not None
        assert broken.error_rate.low < FAILS < broken.error_rate.high

        for endpoint in ("covered", "bare"):
            load = Load()
            good = await rolled_out(made, endpoint, "good", load)
            assert (good.state, good.step) == (RolloutState.DONE, 1), good
            assert set(load.statuses[True] + load.statuses[False]) == {200}
            answer = await made.server.chat(endpoint, max_tokens=6)
            assert answer.headers["served-model-name"] == "good"


async def create(made: Controlled, name: str, *, is_covered: bool) -> None:
    """An endpoint of all three entities. `is_covered`: another entity answers where one fails."""
    entities = tuple(
        EntityWanted(entity_name=MODEL, entity_version=version, name=entity)
        for entity, version in VERSIONS.items()
    )
    await made.do(
        CreateEndpoint(
            name=name,
            config=ConfigWanted(entities=entities, traffic={"old": 100, "broken": 0, "good": 0}),
            is_provisioned=False,
            ai_gateway={"fallback_config": {"enabled": is_covered}},
        )
    )
    shown = await made.until_settled(name)
    assert shown.update is UpdateState.NOT_UPDATING, shown.message


async def check_shadow(made: Controlled, endpoint: str) -> None:
    """A copy of each request to another entity changes neither text nor usage of the answers."""
    alone = await talk(made, endpoint)
    await made.do(PutShadow(endpoint=endpoint, shadow={"entity": "good", "percentage": 100}))
    report = await copied(made, endpoint)
    assert await talk(made, endpoint) == alone
    (copies,) = (each for each in report.entities if each.shadow)
    assert copies.entity == "good"
    assert copies.completion_tokens.mean == alone[1]["completion_tokens"]
    await made.do(PutShadow(endpoint=endpoint, shadow=None))


async def talk(made: Controlled, endpoint: str) -> tuple[str, dict[str, int]]:
    """The answer of the endpoint, which is the same every time, and its usage."""
    answer = await made.server.chat(endpoint, max_tokens=6, temperature=0)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    usage = {name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return body["choices"][0]["message"]["content"], usage


async def copied(made: Controlled, endpoint: str) -> ComparisonReport:
    """Once the ledger has a finished copy."""
    async with asyncio.timeout(60):
        while True:
            await talk(made, endpoint)
            report = await made.do(CompareEntities(endpoint=endpoint, since=0.0))
            if any(each.shadow and each.outcomes.get("finished") for each in report.entities):
                return report
            await asyncio.sleep(0.2)


async def rolled_out(made: Controlled, endpoint: str, entity: str, load: Load) -> RolloutShown:
    """The rollout at its end, under `load`."""
    guards = Guards(min_requests=10)
    async with load.running(made, endpoint):
        await made.do(
            StartRollout(endpoint=endpoint, entity=entity, steps=(50, 100), interval_s=2.0, guards=guards)
        )
        async with asyncio.timeout(ENDED_S):
            while (shown := await made.do(GetRollout(endpoint=endpoint))).state is RolloutState.RUNNING:
                await asyncio.sleep(0.5)
    return shown
