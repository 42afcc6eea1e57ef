"""A gateway takes a catalogue as its models come up, says what it waits for, and does not wait for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from serve_app.api.directory import Directory
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.gateway.control import takeover
from serve_app.deployments.gateway.control.takeover import Takeover
from serve_app.endpoints.catalogue import Catalogue, parse_catalogue
from serve_app.endpoints.endpoint import Endpoint, ServedEntity


class Models:
    """Which of them answer can be set; what is looked for and served can be read."""

    def __init__(self, *answering: str) -> None:
        self.answering = set(answering)
        self.served: set[str] = set()
        self.coming: set[str] = set()

    def serve(self, endpoints: Iterable[Endpoint], coming: Iterable[Endpoint] = ()) -> None:
        self.served = {entity.model for endpoint in endpoints for entity in endpoint.served_entities}
        self.coming = {entity.model for endpoint in coming for entity in endpoint.served_entities}

    def answers(self, entity: ServedEntity) -> bool:
        return entity.model in self.answering


def catalogue(**models: str) -> Catalogue:
    """Endpoints, each of one model."""
    endpoints: list[dict[str, Any]] = [
        {"name": name, "served_entities": [{"model": model}]} for name, model in models.items()
    ]
    return parse_catalogue({"endpoints": endpoints})


def now(directory: Directory) -> dict[str, str]:
    return {endpoint.name: endpoint.served_entities[0].model for endpoint in directory}


@asynccontextmanager
async def gateway(models: Models, wait_s: float) -> AsyncIterator[tuple[Takeover, Directory]]:
    directory = Directory()
    made = Takeover(directory, cast("ServeBackend", models), wait_s)
    made.begin(catalogue(one="a", two="b"))
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
            made.begin(catalogue(one="c", two="d", three="e"))
            assert now(directory) == {"one": "c", "two": "b", "three": "e"}
            assert directory.waiting == {"two": ("model-d",)}
            assert (models.served, models.coming) == ({"c", "b", "e"}, {"c", "d", "e"})
            models.answering.add("d")
            await until(directory, one="c", two="d", three="e")
        assert not directory.waiting
        assert models.served == {"c", "d", "e"}
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "endpoint two stays as it was until model-d can answer, at most 60 s",
        "endpoint two has changed",
    ]


async def test_the_wait_is_bounded_and_its_end_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(Models("a", "b"), 0.02) as (made, directory):
        made.begin(catalogue(one="c", two="b"))
        assert now(directory) == {"one": "a", "two": "b"}
        await until(directory, one="c", two="b")
    assert "endpoint one changes without model-c: the wait is over" in caplog.messages


async def test_an_endpoint_waits_for_its_new_models_when_the_former_ones_go_too() -> None:
    models = Models("a", "b")
    async with gateway(models, 60.0) as (made, directory):
        made.begin(catalogue(one="c", two="b"))
        models.answering.remove("a")
        await asyncio.sleep(0.02)
        assert now(directory) == {"one": "a", "two": "b"}
        models.answering.add("c")
        await until(directory, one="c", two="b")


async def test_a_newer_catalogue_ends_the_wait_for_an_older_one() -> None:
    models = Models("a", "b")
    async with gateway(models, 60.0) as (made, directory):
        made.begin(catalogue(one="c", two="b"))
        made.begin(catalogue(one="a", two="b"))
        models.answering.add("c")
        await asyncio.sleep(0.02)
        assert now(directory) == {"one": "a", "two": "b"}
        assert "c" not in models.coming
