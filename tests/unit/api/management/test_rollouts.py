"""Routes of rollouts, shadows, comparisons and feedback, over the handlers and a database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from serve_app.accounts.keys import new_key
from serve_app.control.database.database import Database
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.types import Caller, Scope
from serve_app.types.control import AwaitChanges, Command, Followed, GiveFeedback, Guards, StartRollout
from tests.support.described import Document
from tests.support.gateway import Gateway, bearer, gateway
from tests.support.rollouts import RolloutBench, usage_row

ROOT = "/api/2.0/serving-endpoints/chat"
ENDPOINT = "/api/2.0/serving-endpoints/{endpoint}"
FEEDBACK = "/serving-endpoints/chat/feedback"
ID = "0123456789abcdef" * 2


@dataclass
class Plane:
    """The handlers of rollouts as an `api.backend.Management`."""

    bench: RolloutBench

    def __post_init__(self) -> None:
        self.commands: list[Command[Any]] = []

    async def do(self, command: Command[Any], caller: Caller) -> Any:
        if isinstance(command, AwaitChanges):
            return Followed(behind=0)
        self.commands.append(command)
        return await self.bench.handlers[type(command)](command, caller)


@pytest.fixture
def plane(database: Database) -> Plane:
    return Plane(RolloutBench(database))


@asynccontextmanager
async def managed(plane: Plane | None, **options: Any) -> AsyncIterator[Gateway]:
    async with gateway(management=plane, **options) as g:
        yield g


def described(g: Gateway, method: str, template: str, answer: httpx.Response) -> dict[str, Any]:
    """The JSON of an answer that the OpenAPI document describes."""
    problems = Document(g.app.openapi()).problems(
        method, template, answer.status_code, answer.headers["content-type"], answer.content
    )
    assert list(problems) == []
    found: dict[str, Any] = answer.json()
    return found


async def test_a_rollout_is_started_shown_promoted_and_stopped(plane: Plane) -> None:
    async with managed(plane) as g:
        body = {"entity": "new", "steps": [10, 100], "interval_s": 30, "guards": {"max_total_s": 5}}
        template = f"{ENDPOINT}/rollout"
        started = described(g, "POST", template, await g.post(f"{ROOT}/rollout", body))
        assert plane.commands == [
            StartRollout(
                endpoint="chat",
                entity="new",
                steps=(10, 100),
                interval_s=30.0,
                guards=Guards(max_error_rate=0.05, max_total_s=5.0),
            )
        ]
        assert (started["state"], started["percentage"], started["step"]) == ("RUNNING", 10, 0)
        assert started["former_traffic"] == {"old": 100}
        assert started["start_timestamp"] == round(plane.bench.now * 1000)
        shown = described(g, "GET", template, await g.client.get(f"{ROOT}/rollout"))
        assert shown == started
        stopped = described(g, "DELETE", template, await g.client.delete(f"{ROOT}/rollout"))
        assert stopped["state"] == "STOPPED"
        again = await g.post(f"{ROOT}/rollout", {"entity": "new"})
        assert again.json()["steps"] == [5, 25, 50, 100]
        promoted = await g.post(f"{ROOT}/rollout/promote")
        assert described(g, "POST", f"{template}/promote", promoted)["state"] == "DONE"
        assert plane.bench.traffic == {"new": 100}
        twice = described(g, "POST", f"{template}/promote", await g.post(f"{ROOT}/rollout/promote"))
        assert twice["error_code"] == "RESOURCE_CONFLICT"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "entity: is required"),
        ({"entity": "nobody"}, "entity: the endpoint has no entity 'nobody'; there is: old, new"),
        ({"entity": "new", "steps": [50, 25]}, "steps: must be 1 to 20 percentages that rise"),
        ({"entity": "new", "steps": [0]}, "steps: must be a list of up to 20 integers from 1 to 100"),
        ({"entity": "new", "interval_s": 0}, "interval_s: must be a number from 1 to 604800"),
        (
            {"entity": "new", "guards": {"max_error_rate": 2}},
            "guards.max_error_rate: must be a number from 0",
        ),
        ({"entity": "new", "guards": {"min_requests": 0}}, "guards.min_requests: must be an integer from 1"),
        ({"entity": "new", "weight": 5}, 'unknown field "weight"'),
    ],
)
async def test_a_wrong_rollout_is_refused_by_field(plane: Plane, body: dict[str, Any], says: str) -> None:
    async with managed(plane) as g:
        answer = await g.post(f"{ROOT}/rollout", body)
        assert answer.status_code == 400
        assert says in answer.json()["message"], answer.text


async def test_a_shadow_is_set_and_taken_away(plane: Plane) -> None:
    async with managed(plane) as g:
        template = f"{ENDPOINT}/shadow"
        body = {"entity": "new", "percentage": 20, "max_concurrent": 3}
        assert described(g, "PUT", template, await g.client.put(f"{ROOT}/shadow", json=body)) == {}
        assert plane.bench.splits.shadows["chat"] == Shadow(entity="new", percentage=20, max_concurrent=3)
        assert described(g, "DELETE", template, await g.client.delete(f"{ROOT}/shadow")) == {}
        assert plane.bench.splits.shadows["chat"] is None
        for wrong, says in (
            ({"entity": "new"}, "percentage: is required"),
            ({"percentage": 1}, "entity: is"),
        ):
            refused = await g.client.put(f"{ROOT}/shadow", json=wrong)
            assert (refused.status_code, says in refused.text) == (400, True)


async def test_entities_are_compared(plane: Plane) -> None:
    now = plane.bench.now
    await plane.bench.add(*(usage_row(now, total_s=1 + k % 7) for k in range(200)))
    await plane.bench.add(*(usage_row(now, entity="new", total_s=3 + k % 7) for k in range(200)))
    async with managed(plane) as g:
        asked = await g.client.get(f"{ROOT}/comparison?metric=total_s&confidence=0.99&since_timestamp=5")
        report = described(g, "GET", f"{ENDPOINT}/comparison", asked)
        assert (report["since_timestamp"], report["confidence"]) == (5, 0.99)
        assert [each["entity"] for each in report["entities"]] == ["old", "new"]
        assert report["entities"][0]["total_s"]["mean"] == pytest.approx(3.97)
        (test,) = report["tests"]
        assert (test["entity"], test["against"], test["is_significant"]) == ("new", "old", True)
        for wrong in ("since_timestamp=yesterday", "confidence=2", "metric=speed"):
            refused = await g.client.get(f"{ROOT}/comparison?{wrong}")
            assert refused.status_code == 400
            assert refused.json()["message"].startswith(wrong.split("=")[0]), refused.text


async def test_a_client_judges_its_answer(plane: Plane) -> None:
    async with managed(plane) as g:
        body = {"request_id": f"chatcmpl-{ID}", "metric": "thumbs", "value": 1}
        answer = await g.post(FEEDBACK, body)
        assert described(g, "POST", "/serving-endpoints/{endpoint}/feedback", answer) == {}
        (command,) = plane.commands
        assert isinstance(command, GiveFeedback)
        assert (command.endpoint, command.metric, command.value) == ("chat", "thumbs", 1.0)
        for wrong, field in (
            ({**body, "request_id": "nonsense"}, "request_id"),
            ({**body, "metric": "total_s"}, "metric"),
            ({**body, "value": "good"}, "value"),
            ({"request_id": body["request_id"], "metric": "thumbs"}, "value"),
        ):
            refused = await g.post(FEEDBACK, wrong)
            assert refused.status_code == 400
            assert refused.json()["message"].startswith(f"{field}:"), refused.text


async def test_the_id_of_every_answer_can_be_judged(plane: Plane) -> None:
    """Whatever protocol the answer has: by its `id`, or by the header of every answer."""
    async with managed(plane) as g:
        answers = [await g.chat(), await g.complete()]
        for answer in answers:
            record = g.journal.records[answers.index(answer)]
            for told in (answer.json()["id"], answer.headers["x-request-id"]):
                judged = await g.post(FEEDBACK, {"request_id": told, "metric": "thumbs", "value": 0})
                assert judged.status_code == 200, judged.text
                assert record.id in told


async def test_keys_need_their_scopes(plane: Plane) -> None:
    operator, of_operator = new_key("operator", [Scope.MANAGE])
    client, of_client = new_key("client")
    async with managed(plane, keys=f"{of_operator}\n{of_client}") as g:
        body = {"request_id": ID, "metric": "thumbs", "value": 1}
        assert (await g.post(FEEDBACK, body, headers=bearer(client))).status_code == 200
        assert plane.commands[-1].key_id == "client"  # type: ignore[attr-defined]
        assert (await g.post(FEEDBACK, body, headers=bearer(operator))).status_code == 403
        start = {"entity": "new"}
        assert (await g.post(f"{ROOT}/rollout", start, headers=bearer(client))).status_code == 403
        assert (await g.post(f"{ROOT}/rollout", start, headers=bearer(operator))).status_code == 200


async def test_without_a_control_plane_the_routes_say_so() -> None:
    async with managed(None) as g:
        answer = await g.post(f"{ROOT}/rollout", {"entity": "new"})
        assert answer.status_code == 404
        assert "control.enabled" in answer.text
