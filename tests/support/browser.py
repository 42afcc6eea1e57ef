"""A Chromium of the system, and visits of pages that note what a page asked for and complained of."""

from __future__ import annotations

import shutil
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Playwright, Response

# The shell first: it has no windows to draw, and takes half the time.
BROWSERS: Final = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
CHROMIUM: Final = next((path for name in BROWSERS if (path := shutil.which(name))), None)
needs_chromium: Final = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: apt-get install chromium-headless-shell"
)
LOAD_MS: Final = 60_000
# No name is resolved: whatever is not loopback would fail, and be seen.
ARGUMENTS: Final = (
    "--no-sandbox",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


async def launch(playwright: Playwright) -> Browser:
    return await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)


class Visit:
    """One tab of one browser profile, at one server."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.asked: list[str] = []
        self.complaints: list[str] = []  # of the console and of the policy, in the browser's words
        page.set_default_timeout(LOAD_MS)
        page.set_default_navigation_timeout(LOAD_MS)
        page.context.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    @property
    def context(self) -> BrowserContext:
        return self.page.context

    async def goto(self, path: str) -> Response:
        answer = await self.page.goto(f"{self.url}{path}")
        if answer is None:
            raise AssertionError(f"{path} has no answer")
        return answer

    def hosts(self) -> set[str | None]:
        """Every host that the page asked."""
        return {urlsplit(each).hostname for each in self.asked if not each.startswith(("data:", "blob:"))}

    def forgive(self) -> None:
        """What was asked and complained of so far was expected."""
        self.asked.clear()
        self.complaints.clear()

    def _note(self, kind: str, text: str) -> None:
        if kind == "error":
            self.complaints.append(text)
