"""The Playground over the real engine, over a backend that plays a part, and its modules without a server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

import serve_app
from serve_app.accounts.keys import new_key
from serve_app.api.services import Services
from serve_app.types import EngineStats, Scope
from tests.conformance.target import demo_app
from tests.support.browser import LOAD_MS, Visit
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import directory_of, fake_app, served

STATIC: Final = Path(serve_app.__file__).parent / "console" / "static" / "playground"
HERE: Final = "http://modules.test/"
POLICY: Final = "default-src 'none'; script-src 'self'; connect-src 'self'"


class Modules:
    """A page with nothing but the modules. `run` evaluates JavaScript that may import them."""

    def __init__(self, page: Page) -> None:
        self._page = page

    async def run(self, module: str, script: str, value: Any = None) -> Any:
        """`script` is the body of a function of `m`, the module, and `v`, which is `value`."""
        code = f"async ([v]) => {{ const m = await import('{HERE}{module}'); {script} }}"
        return await self._page.evaluate(code, [value])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def modules(chromium: Browser) -> AsyncIterator[Modules]:
    async def serve(route: Route) -> None:
        name = route.request.url.removeprefix(HERE)
        if name == "":
            await route.fulfill(
                body="<!doctype html><title>modules</title><main></main>",
                content_type="text/html",
                headers={"content-security-policy": POLICY},
            )
        else:
            await route.fulfill(body=(STATIC / name).read_text(), content_type="text/javascript")

    page = await chromium.new_page()
    await page.route("**/*", serve)
    await page.goto(HERE, timeout=60_000)
    yield Modules(page)
    await page.close()


ROUTER, ROUTER_LINE = new_key("router", [Scope.INFERENCE, Scope.ROUTING])
READER, READER_LINE = new_key("reader", [Scope.INFERENCE])
SPLIT: Final = [
    {
        "name": "assistant",
        "served_entities": [{"name": "old", "model": "demo"}, {"name": "new", "model": "org/other"}],
        "traffic": {"old": 90, "new": 10},
    },
    {"name": "writer", "task": "llm/v1/completions", "served_entities": [{"model": "demo"}]},
    {"name": "vectors", "task": "llm/v1/embeddings", "served_entities": [{"model": "demo"}]},
]

expect.set_options(timeout=LOAD_MS)


@dataclass(frozen=True)
class Demo:
    """A server with the bundled model, without keys."""

    url: str
    services: Services

    @property
    def stats(self) -> EngineStats:
        (found,) = self.services.backend.stats().values()
        return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def demo() -> AsyncIterator[Demo]:
    async with demo_app(window=None) as app, served(app) as (host, port):
        yield Demo(f"http://{host}:{port}", app.state.services)


@dataclass(frozen=True)
class Scripted:
    """A server whose backend plays a part, with two keys and an endpoint of two entities."""

    url: str
    backend: FakeBackend


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def scripted() -> AsyncIterator[Scripted]:
    backend = FakeBackend()
    app = fake_app(backend, f"{ROUTER_LINE} {READER_LINE}", directory_of(backend, SPLIT))
    async with served(app) as (host, port):
        yield Scripted(f"http://{host}:{port}", backend)


@pytest_asyncio.fixture(loop_scope="session")
async def tab(chromium: Browser) -> AsyncIterator[Page]:
    """A tab that complains of nothing but refused requests, and asks nobody else."""
    context = await chromium.new_context()
    visit = Visit(await context.new_page(), "")
    yield visit.page
    await context.close()
    assert [each for each in visit.complaints if "status of 400" not in each] == []
    assert visit.hosts() <= {"127.0.0.1"}


async def open_playground(page: Page, url: str, key: str | None = None, query: str = "") -> None:
    if key is not None:
        await page.goto(f"{url}/console/sign-in?next=/console/playground")
        await page.get_by_label("API key").fill(key)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url(f"{url}/console/playground")
    if key is None or query:
        await page.goto(f"{url}/console/playground{query}")
    await page.wait_for_selector("#playground[data-ready]")


async def ask(page: Page, text: str) -> None:
    """Asks, and waits for every answer to end."""
    await page.locator("#prompt").fill(text)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#status")).to_have_text(re.compile("^Answered"))
    await expect(page.locator("#send")).to_be_visible(timeout=LOAD_MS)


async def choose(page: Page, group: str, **options: str) -> None:
    """Sets options of a group, which is opened."""
    details = page.locator("#options details", has=page.locator("summary", has_text=group))
    await details.evaluate("(each) => (each.open = true)")
    for name, value in options.items():
        control = details.locator(f"[data-option={name}], [data-path={name}]")
        if await control.evaluate("(each) => each.tagName") == "SELECT":
            await control.select_option(value)
        else:
            await control.fill(value)
