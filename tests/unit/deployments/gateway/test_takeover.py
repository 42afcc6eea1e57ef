"""A gateway takes a catalogue as its models come up, says what it waits for, and does not wait for ever."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from serve_app.api.directory import Directory
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.gateway.control import takeover
from serve_app.deployments.gateway.control.takeover import Takeover
from serve_app.endpoints.endpoint import Endpoint, ServedEntity


class Models:
    """Which of them answer can be set; what is looked for and served can be read."""

    def __init__(self, *answering: str) -> None:
        self.answering = set(answering)
        self.watched: Counter[str] = Counter()
        self.served: list[str] = []  # in the order in which requests went there first

    def watch(self, endpoint: Endpoint) -> None:
        self.watched.update(entity.model for entity in endpoint.served_entities)

    def serve(self, endpoint: Endpoint) -> None:
        assert all(self.watched[entity.model] for entity in endpoint.served_entities)
        self.served += [entity.model for entity in endpoint.served_entities]

    def unwatch(self, endpoint: Endpoint) -> None:
        self.watched.subtract(entity.model for entity in endpoint.served_entities)
        self.watched = +self.watched

    def answers(self, entity: ServedEntity) -> bool:
        return entity.model in self.answering


def changes(**models: str | None) -> dict[str, Endpoint | None]:
    """Endpoints, each of one model; None: it is gone."""
    return {
        name: None if model is None else Endpoint(name=name, served_entities=(ServedEntity(model=model),))
        for name, model in models.items()
    }


def now(directory: Directory) -> dict[str, str]:
    return {endpoint.name: endpoint.served_entities[0].model for endpoint in directory}


@asynccontextmanager
async def gateway(models: Models, wait_s: float) -> AsyncIterator[tuple[Takeover, Directory]]:
    directory = Directory()
    made = Takeover(directory, cast("ServeBackend", models), wait_s)
    made.begin(changes(one="a", two="b"))
    yield made, directory
    made.close()


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "LOOK_S", 0.001)


async def until(directory: Directory, **models: str) -> None:
    while now(directory) != models:
        await asyncio.sleep(0.001)


async def test_the_first_catalogue_is_taken_whoever_answers() -> None:
    async with gateway(Models(), 60.0) as (_, directory):
        assert now(directory) == {"one": "a", "two": "b"}
        assert not directory.waiting


async def test_each_endpoint_changes_when_its_own_models_answer(caplog: pytest.LogCaptureFixture) -> None:
    models = Models("a", "b", "c")
    async with gateway(models, 60.0) as (made, directory):
        with caplog.at_level(logging.INFO):
            made.begin(changes(one="c", two="d", three="e"))
            assert now(directory) == {"one": "c", "two": "b", "three": "e"}
            assert directory.waiting == {"two": ("model-d",)}
            assert models.watched == dict.fromkeys("bcde", 1)
            models.answering.add("d")
            await until(directory, one="c", two="d", three="e")
        assert not directory.waiting
        assert models.watched == dict.fromkeys("cde", 1)
        assert models.served == ["a", "b", "c", "e", "d"]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "endpoint two stays as it was until model-d can answer, at most 60 s",
        "endpoint two has changed",
    ]


async def test_the_wait_is_bounded_and_its_end_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(Models("a", "b"), 0.02) as (made, directory):
        made.begin(changes(one="c", two="b"))
        assert now(directory) == {"one": "a", "two": "b"}
        await until(directory, one="c", two="b")
    assert "endpoint one changes without model-c: the wait is over" in caplog.messages


async def test_an_endpoint_waits_for_its_new_models_when_the_former_ones_go_too() -> None:
    models = Models("a", "b")
    async with gateway(models, 60.0) as (made, directory):
        made.begin(changes(one="c", two="b"))
        models.answering.remove("a")
        await asyncio.sleep(0.02)
        assert now(directory) == {"one": "a", "two": "b"}
        models.answering.add("c")
        await until(directory, one="c", two="b")


async def test_a_newer_catalogue_ends_the_wait_for_an_older_one() -> None:
    models = Models("a", "b")
    async with gateway(models, 60.0) as (made, directory):
        made.begin(changes(one="c", two="b"))
        made.begin(changes(one="a", two="b"))
        models.answering.add("c")
        await asyncio.sleep(0.02)
        assert now(directory) == {"one": "a", "two": "b"}
        assert models.watched == {"a": 1, "b": 1}


async def test_a_change_leaves_all_others_alone_and_what_is_gone_is_gone_at_once() -> None:
    models = Models("a", "b", "c")
    async with gateway(models, 60.0) as (made, directory):
        made.begin(changes(one="d"))
        assert directory.waiting == {"one": ("model-d",)}
        made.begin(changes(two="c"))
        assert now(directory) == {"one": "a", "two": "c"}
        assert directory.waiting == {"one": ("model-d",)}
        made.begin(changes(one=None))
        assert now(directory) == {"two": "c"}
        assert not directory.waiting
        assert models.watched == {"c": 1}
        made.begin(changes(one="d", two=None))
        assert now(directory) == {"one": "d"}
