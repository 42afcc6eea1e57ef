"""Every path of the console, enumerated from its table, against callers without the right."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serve_app.accounts.keys import new_key
from serve_app.api.edge.auth import OPEN_PATHS
from serve_app.config import ConsoleConfig
from serve_app.console.session import COOKIE, Sessions
from serve_app.console.site import Site
from serve_app.types import Scope
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import bearer, fake_app, filled, gateway

pytestmark = pytest.mark.all_combinations

SECRET = "0123456789abcdef" * 2
KEY, LINE = new_key("infer")
SCRAPER, SCRAPER_LINE = new_key("scraper", [Scope.METRICS])
CHOOSER, CHOOSER_LINE = new_key("chooser", [Scope.ROUTING])  # which alone is good for nothing
MANAGER, MANAGER_LINE = new_key("manager", list(Scope))
KEYS = f"{LINE} {SCRAPER_LINE} {CHOOSER_LINE} {MANAGER_LINE}"
ENTRANCE = {"/console/sign-in", "/console/sign-out"}
SESSIONS = Sessions(SECRET, 3600)


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVE_APP_CONSOLE_SECRET", SECRET)


def pages() -> list[tuple[str, str]]:
    site = Site(
        fake_app(FakeBackend()), ConsoleConfig(), lambda scope: None, {"SERVE_APP_CONSOLE_SECRET": SECRET}
    )
    return [(method, filled(route.path)) for route in site.routes for method in sorted(route.methods or ())]


def api() -> list[tuple[str, str, tuple[Scope, ...]]]:
    routes: list[Any] = fake_app(FakeBackend()).routes
    return [
        (method, filled(route.path), route.app.scopes)
        for route in routes
        for method in sorted(route.methods)
        if route.path not in OPEN_PATHS
    ]


def session_of(client: httpx.AsyncClient, key: str) -> str:
    """The token of a session with `key`, whose cookie `client` has from now on."""
    session = SESSIONS.begin(key)
    client.cookies.set(COOKIE, SESSIONS.seal(session))
    return session.csrf


PAGES = pages()


def test_the_table_has_what_it_must() -> None:
    assert {"/console", *ENTRANCE} <= {path for _, path in PAGES}


@pytest.mark.parametrize(("method", "path"), [each for each in PAGES if each[1] not in ENTRANCE])
async def test_a_page_shows_a_stranger_nothing(method: str, path: str) -> None:
    async with gateway(keys=KEYS) as g:
        for headers in (
            {},
            bearer(KEY),
            bearer(MANAGER),
            {"cookie": f"{COOKIE}=gAAAAA"},
            {"x-csrf-token": "x"},
        ):
            answer = await g.client.request(method, path, headers=headers)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/console/sign-in")
            assert not answer.content
        token = session_of(g.client, "sk-nobody-has-it")
        answer = await g.client.request(method, path, headers={"x-csrf-token": token})
        assert answer.headers["location"].startswith("/console/sign-in")
        assert not g.backend.requests


@pytest.mark.parametrize(("method", "path"), [each for each in PAGES if each[0] not in ("GET", "HEAD")])
async def test_a_form_needs_the_sessions_own_token(method: str, path: str) -> None:
    async with gateway(keys=KEYS) as g:
        session_of(g.client, MANAGER)
        other = SESSIONS.begin(MANAGER).csrf
        for form in ({}, {"csrf": ""}, {"csrf": "x"}, {"csrf": other}):
            assert (await g.client.request(method, path, data=form)).status_code == 403
            headers = {"x-csrf-token": form.get("csrf", "")}
            assert (await g.client.request(method, path, headers=headers)).status_code == 403


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(
    "path",
    ["/console/", "/console/x", "/console//keys", "/console/%2e%2e/livez", "/console/sign-in/", "/console\n"],
)
async def test_there_is_nothing_else(method: str, path: str) -> None:
    async with gateway(keys=KEYS) as g:
        for key in (None, KEY):
            token = "" if key is None else session_of(g.client, key)
            raw = httpx.URL("http://gateway").copy_with(raw_path=path.replace("\n", "%0A").encode())
            answer = await g.client.request(method, raw, headers={"x-csrf-token": token})
            assert answer.status_code in ((303, 401, 404, 405) if key is None else (403, 404, 405))
            assert "/console" in answer.headers.get("location", "/console")


async def test_the_forwarded_api_asks_for_what_the_api_itself_asks_for() -> None:
    """No scope is gained: each route refuses the same sessions as it refuses keys."""
    async with gateway(keys=KEYS) as g:
        for method, path, scopes in api():
            g.client.cookies.clear()
            inner = f"/console/api{path}"
            stranger = await g.client.request(method, inner, json={})
            assert stranger.status_code == 401, (method, path)
            wrong = CHOOSER if Scope.METRICS in scopes else SCRAPER if Scope.INFERENCE in scopes else KEY
            token = session_of(g.client, wrong)
            refused = await g.client.request(method, inner, json={}, headers={"x-csrf-token": token})
            direct = await g.client.request(method, path, json={}, headers=bearer(wrong))
            assert (refused.status_code, direct.status_code) == (403, 403), (method, path)
            if method not in ("GET", "HEAD"):
                token = session_of(g.client, MANAGER)
                assert (await g.client.request(method, inner, json={})).status_code == 403, (method, path)
            lent = await g.client.request(
                method, inner, json={}, headers={"x-csrf-token": token, **bearer(MANAGER)}
            )
            assert lent.status_code == 403 or method not in ("GET", "HEAD")
        assert not g.backend.requests
