"""Which server is asked, the fixture that asks it, and what it cannot be asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from tests.conformance.target import DEMO, Target
from tests.support.described import answers_are_described

# Test modules are imported after the options are read.
TARGET = Target()
MODEL = DEMO  # the name that requests give


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "a running server to ask instead of one of this process")
    group.addoption("--base-url", metavar="URL", help="its address, without a path")
    group.addoption("--api-key", metavar="KEY", help="sent as a bearer token")
    group.addoption("--model", metavar="NAME", help=f"a model that it serves (default: {DEMO})")


def pytest_configure(config: pytest.Config) -> None:
    global TARGET, MODEL
    TARGET = Target.of(config)
    MODEL = TARGET.model
    config.addinivalue_line("markers", "own_server: of conformance, not to be asked of any server")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if (reason := TARGET.skips(item)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def undescribed() -> Iterator[list[str]]:
    """What answers of this process have that the OpenAPI document of their server does not say."""
    with answers_are_described() as problems:
        yield problems


@pytest.fixture(autouse=True)
def every_answer_is_described(undescribed: list[str]) -> Iterator[None]:
    """Whatever these suites are answered has a status, a type and a shape that /openapi.json lists."""
    undescribed.clear()  # of tests of other folders in this process
    yield
    found = [*undescribed]
    undescribed.clear()
    assert found == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """HTTP to the server that is asked."""
    async with TARGET.client() as connected:
        yield connected
