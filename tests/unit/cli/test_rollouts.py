"""Rollouts and comparisons on the command line, over the routes and a real database."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from serve_app.control.database.database import Database
from serve_app.types import Caller
from serve_app.types.control import AwaitChanges, Command, Followed
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app
from tests.support.rollouts import RolloutBench, usage_row


class Plane:
    """The handlers of rollouts. Each look at a rollout comes after one of the control plane's own."""

    def __init__(self, bench: RolloutBench) -> None:
        self.bench = bench
        self.seconds = 0.0  # that pass before each command
        self.fails = 0  # requests of `new` that failed by then

    async def do(self, command: Command[Any], caller: Caller) -> Any:
        if isinstance(command, AwaitChanges):
            return Followed(behind=0)
        self.bench.now += self.seconds
        now = self.bench.now
        failed = [usage_row(now, entity="new", outcome="failed", status=500) for _ in range(self.fails)]
        await self.bench.add(*failed, *(usage_row(now, entity="new") for _ in range(30)))
        await self.bench.rollouts.look()
        return await self.bench.handlers[type(command)](command, caller)


@pytest.fixture
def plane(database: Database) -> Plane:
    return Plane(RolloutBench(database))


@pytest.fixture
def url(serve: Any, plane: Plane) -> str:
    found: str = serve(fake_app(FakeBackend(), management=plane))
    return found


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.cli.rollouts.LOOK_S", 0.0)


def test_a_rollout_is_started_shown_and_stopped(invoke: Any, url: str, plane: Plane) -> None:
    started = invoke(
        "endpoints", "rollout", "chat", "new", "--url", url, "--steps", "10,100", "--max-error-rate", 0.1
    )
    assert started.output == "chat -> new: RUNNING, 10 %: started\n"
    assert plane.bench.traffic == {"old": 90, "new": 10}
    shown = invoke("endpoints", "rollout", "chat", "--url", url)
    assert "RUNNING, 10 %: step 1 of 2 (10 %): the step lasts 60 s" in shown.output
    stopped = invoke("endpoints", "rollout", "chat", "--url", url, "--stop")
    assert stopped.output == "chat -> new: STOPPED, 10 %: stopped by its user\n"
    assert plane.bench.traffic == {"old": 100}
    again = invoke("endpoints", "rollout", "chat", "--url", url, "--promote")
    assert again.exit_code == 1
    assert "has ended: STOPPED" in again.output


def test_a_rollout_is_followed_to_its_end(invoke: Any, url: str, plane: Plane) -> None:
    plane.seconds = 61.0
    done = invoke("endpoints", "rollout", "chat", "new", "--url", url, "--steps", "50,100", "--wait")
    assert done.exit_code == 0, done.output
    assert [line.split(": ")[1] for line in done.output.splitlines()] == [
        "RUNNING, 50 %", "RUNNING, 100 %", "DONE, 100 %",
    ]  # fmt: skip


def test_a_rollout_that_fails_fails_the_command(invoke: Any, url: str, plane: Plane) -> None:
    plane.fails = 15
    failed = invoke("endpoints", "rollout", "chat", "new", "--url", url, "--wait")
    assert failed.exit_code == 1
    assert "ROLLED_BACK, 5 %: step 1 of 4 (5 %): a guard is broken" in failed.output
    assert "the rollout ended as ROLLED_BACK" in failed.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("new", "--stop"), "only one of ENTITY, --stop and --promote"),
        (("--steps", "5,100"), "need an ENTITY"),
        (("new", "--steps", "a"), "whole numbers with commas"),
        (("nobody",), "the endpoint has no entity 'nobody'"),
    ],
)
def test_wrong_words_are_refused(invoke: Any, url: str, words: tuple[str, ...], says: str) -> None:
    refused = invoke("endpoints", "rollout", "chat", *words, "--url", url)
    assert refused.exit_code != 0
    assert says in refused.output


def test_entities_are_compared(invoke: Any, url: str, plane: Plane) -> None:
    now = plane.bench.now
    rows = [usage_row(now, total_s=1 + k % 7) for k in range(300)]
    rows += [usage_row(now, entity="new", total_s=4 + k % 7) for k in range(300)]
    asyncio.run(plane.bench.add(*rows))
    table = invoke("endpoints", "compare", "chat", "--url", url, "--metric", "total_s")
    assert table.exit_code == 0, table.output
    header, old, new, verdict = table.output.splitlines()
    assert header.split()[:2] == ["ENTITY", "REQUESTS"]
    assert old.split()[:2] == ["old", "300"]
    assert new.split()[:2] == ["new", "330"]
    assert verdict.startswith("new differs from old in total_s: 2.")
    whole = invoke("endpoints", "compare", "chat", "--url", url, "--since", "2w", "--format", "json")
    assert json.loads(whole.output)["tests"][0]["metric"] == "error_rate"
    wrong = invoke("endpoints", "compare", "chat", "--url", url, "--metric", "speed")
    assert wrong.exit_code == 1
    assert "no request has the metric 'speed'" in wrong.output
