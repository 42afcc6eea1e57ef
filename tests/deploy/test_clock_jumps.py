"""The machine's clock jumps an hour ahead and back, and an hour behind and back, while a server serves."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest

from serve_app.accounts.journal_reader import read
from serve_app.accounts.keys import new_key
from tests.deploy.answers import completion
from tests.deploy.command import Command, command, line_of
from tests.deploy.deployment import COMPLETIONS, DEMO, alone, app_of, deploy_file, edited, endpoints_of
from tests.support.gateway import bearer
from tests.support.invariants import WAIT_S
from tests.support.shifted_clock import ShiftedClock

pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]

HOUR: Final = 3600
BACK_S: Final = 15.0  # until keys that the clock ended are there again
STAYS_S: Final = 25.0  # longer than the periods of health checks, polls of the control plane and leases
KEYS: Final = "/api/2.0/keys"
USAGE: Final = "/api/2.0/usage"
LIMITED: Final = "limited"
VITAL: Final = ("ServeReplica", "ServeController", "raylet/raylet", "gcs_server", "HAProxyManager")


def vital(served: Command) -> set[psutil.Process]:
    return {each for each in served.family() if any(part in line_of(each) for part in VITAL)}


async def test_nothing_ends_and_nothing_is_counted_wrongly(tmp_path: Path) -> None:
    clock = ShiftedClock(tmp_path)
    key, line = new_key("operator", ["inference", "manage"])
    (tmp_path / "keys").write_text(line)
    limits = {"requests_per_minute": 2}
    entity = [{"model": DEMO}]
    raw = edited(
        alone(deploy_file("local"), DEMO),
        lambda raw: endpoints_of(raw).append(
            {"name": LIMITED, "served_entities": entity, "kind": "pay_per_token", "limits": limits}
        ),
    )
    app_of(raw, "system")["args"] = {"keys_file": str(tmp_path / "keys")}
    with command(raw, tmp_path / "run", **clock.environ) as served:
        await served.until_ready()
        async with httpx.AsyncClient(base_url=served.url, timeout=WAIT_S, headers=bearer(key)) as client:

            async def ask(model: str = DEMO, secret: str = key, **fields: object) -> httpx.Response:
                body = {**completion(model, max_tokens=24), **fields}
                return await client.post(COMPLETIONS, json=body, headers=bearer(secret))

            over, statuses = asyncio.Event(), Counter[int]()

            async def stream() -> None:
                while not over.is_set():
                    answer = await ask(stream=True)
                    assert answer.text.endswith("data: [DONE]\n\n"), answer.text
                    statuses[answer.status_code] += 1
                    await asyncio.sleep(0.1)

            made = await client.post(KEYS, json={"name": "half-an-hour", "lifetime_seconds": HOUR // 2})
            short = made.json()["key"]
            before = vital(served)
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(stream())
                for shift in (0, HOUR, 0, -HOUR, 0):
                    clock.jump(shift)
                    # Limits follow no clock on the wall: an hour ahead is no hour of waiting.
                    answers = [await ask(LIMITED) for _ in range(4)]
                    asked = [each.status_code for each in answers]
                    assert set(asked) <= {200, 429}, (shift, [each.text for each in answers])
                    assert asked.count(200) <= 2, (shift, asked)
                    await asyncio.sleep(STAYS_S if shift else BACK_S)
                    assert (await ask(secret=short)).status_code == (401 if shift > 0 else 200), shift
                    assert (await client.post(KEYS, json={"name": f"made-{shift}"})).status_code in (200, 409)
                    assert (await client.get("/readyz")).json() == {"status": "ready"}
                    assert vital(served) == before
                over.set()
            assert statuses.keys() == {200}
            async with asyncio.timeout(WAIT_S):
                while True:
                    report = (await client.get(USAGE, params={"by": "outcome"})).json()
                    records = list(read(served.usage))
                    if sum(report["total"]["requests"].values()) == len(records):
                        break
                    await asyncio.sleep(0.2)
        assert len({record.id for record in records}) == len(records)
        assert {record.outcome for record in records} <= {"finished", "failed"}
        assert all(0 <= record.total_s < HOUR / 2 for record in records if record.total_s is not None)
        served.ctrl_c()
        assert await served.ended() == 0
