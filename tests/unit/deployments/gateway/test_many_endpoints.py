"""What a change costs a gateway does not grow with the endpoints that stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

from serve_app.api.directory import Directory
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.gateway.control.catalogues import Catalogues
from serve_app.endpoints.catalogue import Catalogue, parse_catalogue
from serve_app.endpoints.endpoint import Endpoint
from serve_app.types.control import Snapshot
from tests.unit.deployments.gateway.test_takeover import Models


class ReadyModels(Models):
    """All that are watched can answer."""

    def answers(self, entity: Any) -> bool:
        return True

    def watches(self, entity: Any) -> bool:
        return True

    def is_ready(self, app: str) -> bool:
        return True

    def ready(self) -> tuple[str, ...]:
        return tuple(f"model-{model}" for model in self.watched)


def endpoints(count: int) -> dict[str, bytes]:
    return {f"e{number}": raw(f"e{number}") for number in range(count)}


def raw(name: str, model: str = "a") -> bytes:
    return (
        Endpoint.model_validate(
            {
                "name": name,
                "served_entities": [{"model": model}],
                "ai_gateway": {"rate_limits": [{"calls": 9}]},
            }
        )
        .model_dump_json()
        .encode()
    )


def calls_of(work: Callable[[], None]) -> int:
    """How many Python functions `work` calls, and functions in C of them."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def gateway(count: int) -> tuple[Catalogues, Directory, dict[str, bytes]]:
    directory = Directory()
    found = Catalogues("g", directory, cast("ServeBackend", ReadyModels()), 60.0)
    found.declare(parse_catalogue({"endpoints": [{"name": "declared"}]}))
    made = endpoints(count)
    found.take(Snapshot(version=1, endpoints=made))
    found.report()
    return found, directory, made


async def test_one_more_endpoint_and_one_that_changes_cost_the_same_among_few_and_many() -> None:
    costs = []
    for count in (20, 2_000):
        found, directory, made = gateway(count)
        changed = {**made, "one": raw("one"), "e7": raw("e7", "b")}
        del changed["e9"]
        costs.append(calls_of(lambda: found.take(Snapshot(version=2, endpoints=changed))))  # noqa: B023
        found.report()
        assert directory.named("e7") == Endpoint.model_validate_json(changed["e7"])
        assert (directory.named("one") is not None, directory.named("e9")) == (True, None)
        assert len(directory) == count + 1
        assert found.report().in_force == 2
        found.close()
    few, many = costs
    assert many < 4 * few + 2_000 * 3  # no more than to compare each endpoint with the one before


async def test_a_start_reads_each_endpoint_once() -> None:
    few, many = (calls_of(lambda: gateway(count)[0].close()) for count in (100, 1_000))  # noqa: B023
    assert many < 12 * few


def test_a_catalogue_is_checked_in_one_pass() -> None:
    def checked(count: int) -> int:
        made = tuple(Endpoint(name=f"e{number}") for number in range(count))
        return calls_of(lambda: str(len(Catalogue(endpoints=made).endpoints)) and None)

    assert checked(1_000) < 12 * checked(100)
