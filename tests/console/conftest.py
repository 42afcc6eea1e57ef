"""One Chromium and one server for all tests of the console in a worker: a real socket, a real control
plane and ledger, a fake backend.

`visit` is a tab that is signed in as `manager`, who may do everything; `stranger` one that is not signed in.
After each test, a tab may have complained of nothing (unless the test forgave it) and asked nobody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright
from pytest_asyncio import is_async_test

from serve_app.accounts.keys import new_key
from serve_app.types import Scope
from tests.support.browser import Visit, launch, needs_chromium
from tests.support.gateway import served
from tests.support.whole_service import ClusterBackend, WholeService, whole_service

MANAGER, MANAGER_LINE = new_key("manager", list(Scope))
READER, READER_LINE = new_key("reader", [Scope.INFERENCE])
COOKIE: Final = "serve_app_console"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All share one event loop, as they share the browser; without a Chromium none can run."""
    for item in items:
        if "/tests/console/" in item.path.as_posix() and is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(needs_chromium)


@dataclass(frozen=True)
class Server:
    """A gateway on loopback, with two keys."""

    url: str
    service: WholeService
    cookies: dict[str, str] = field(default_factory=dict)  # of sessions, by key: one serves all tests

    @property
    def backend(self) -> ClusterBackend:
        return self.service.backend

    async def sign_in(self, key: str) -> str:
        """The cookie of a session, as the form of the sign-in page makes it."""
        if key in self.cookies:
            return self.cookies[key]
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
            page = await client.get("/console/sign-in")
            token = page.text.partition('name="csrf-token" content="')[2].partition('"')[0]
            answer = await client.post("/console/sign-in", data={"csrf": token, "key": key})
            if answer.status_code != 303:
                raise AssertionError(f"{answer.status_code}: {answer.text}")
            self.cookies[key] = client.cookies[COOKIE]
        return self.cookies[key]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await launch(playwright)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with (
        whole_service(tmp_path_factory.mktemp("service"), f"{MANAGER_LINE} {READER_LINE}") as service,
        served(service.app) as (host, port),
    ):
        yield Server(f"http://{host}:{port}", service)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def open_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server without keys."""
    async with (
        whole_service(tmp_path_factory.mktemp("open")) as service,
        served(service.app) as (host, port),
    ):
        yield Server(f"http://{host}:{port}", service)


@pytest_asyncio.fixture(loop_scope="session")
async def stranger(chromium: Browser, server: Server) -> AsyncIterator[Visit]:
    context = await chromium.new_context()
    visit = Visit(await context.new_page(), server.url)
    yield visit
    await _close(visit)


@pytest_asyncio.fixture(loop_scope="session")
async def visit(stranger: Visit, server: Server) -> Visit:
    """Signed in as `manager`."""
    await sign_in(stranger, server, MANAGER)
    return stranger


@pytest_asyncio.fixture(loop_scope="session")
async def reader(stranger: Visit, server: Server) -> Visit:
    """Signed in with a key that has the scope `inference` alone."""
    await sign_in(stranger, server, READER)
    return stranger


@pytest_asyncio.fixture(loop_scope="session")
async def open_visit(chromium: Browser, open_server: Server) -> AsyncIterator[Visit]:
    """At a server without keys."""
    context = await chromium.new_context()
    visit = Visit(await context.new_page(), open_server.url)
    yield visit
    await _close(visit)


async def sign_in(visit: Visit, server: Server, key: str) -> None:
    await visit.context.add_cookies(
        [
            {
                "name": COOKIE,
                "value": await server.sign_in(key),
                "domain": "127.0.0.1",
                "path": "/console",
                "httpOnly": True,
                "sameSite": "Strict",
            }
        ]
    )


async def _close(visit: Visit) -> None:
    await visit.context.close()
    assert visit.complaints == []
    assert visit.hosts() <= {"127.0.0.1", None}
