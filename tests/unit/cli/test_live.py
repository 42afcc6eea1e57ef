"""`serve-app live`: what the server does now, as a table and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp

from serve_app.live.latencies import FINE_LONG, LatencyCounts, since
from serve_app.live.ring import newest_settled
from serve_app.types.control.live import EntityCounts, LiveSlot
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import directory_of, fake_app

SPLIT = {
    "name": "split",
    "served_entities": [{"model": "demo", "name": "old"}, {"model": "org/other", "name": "new"}],
    "traffic": {"old": 50, "new": 50},
}


@pytest.fixture
def url(serve: Callable[[ASGIApp], str]) -> str:
    backend = FakeBackend()
    app = fake_app(backend, directory=directory_of(backend, [{"name": "demo"}, SPLIT]))
    first = LatencyCounts(FINE_LONG)
    for _ in range(10):
        first.observe(0.05)
    counts = EntityCounts(
        endpoint="split",
        entity="old",
        requests=30,
        completion_tokens=300,
        first_token=since(first.counts, ()),
    )
    slot = LiveSlot(number=newest_settled(time.time()) - 1, entities=(counts,))
    app.state.services.live.pulse.slots.add(slot)
    return serve(app)


def test_a_row_for_each_entity_and_one_for_all_of_an_endpoint(invoke: Any, url: str) -> None:
    result = invoke("live", "--url", url, "--window", "300")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["ENDPOINT", "ENTITY", "REQUESTS/S"]
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in lines[1:5]}
    assert set(rows) == {("demo", "demo"), ("split", "(all)"), ("split", "old"), ("split", "new")}
    assert rows["split", "old"][:5] == ["0.1", "0", "1", "0", "47.9"]
    assert rows["split", "new"] == ["0", "0", "0", "0", "-", "-", "-", "-"]
    assert [line.split()[0] for line in lines[6:]] == ["APPLICATION", "model-demo", "model-org_2fother"]


def test_as_json_and_of_one_endpoint(invoke: Any, url: str) -> None:
    result = invoke("live", "--url", url, "--endpoint", "split", "--format", "json")
    assert [each["endpoint"] for each in json.loads(result.stdout)["endpoints"]] == ["split"]
    refused = invoke("live", "--url", url, "--endpoint", "nowhere")
    assert refused.exit_code == 1
    assert "nowhere" in refused.stderr


def test_in_a_terminal_it_is_renewed_until_the_user_ends_it(
    invoke: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def look_or_end(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", look_or_end)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    result = invoke("live", "--url", url)
    assert result.exit_code == 0, result.output
    assert looks == 3
    assert "old" in result.stdout
