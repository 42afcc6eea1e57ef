"""/openapi.json and /docs: behind a key, with nothing from elsewhere, and made once."""

from __future__ import annotations

import re
from typing import Final
from unittest.mock import patch

import pytest

from serve_app.accounts.keys import new_key
from serve_app.api import app as app_module
from serve_app.api.openapi.routes import FILES
from serve_app.types import Scope
from tests.support.gateway import gateway

PATHS: Final = ("/openapi.json", "/docs", *(f"/docs/{name}" for name in FILES))
ALICE, ALICES_LINE = new_key("alice", [Scope.INFERENCE])
METRICS, METRICS_LINE = new_key("prometheus", [Scope.METRICS])


@pytest.mark.parametrize("path", PATHS)
async def test_only_who_may_ask_models_may_read(path: str) -> None:
    async with gateway(keys=f"{ALICES_LINE} {METRICS_LINE}") as at:
        for key, status in ((None, 401), (METRICS, 403), (ALICE, 200)):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            assert (await at.client.get(path, headers=headers)).status_code == status


async def test_the_document_is_the_apps_and_is_made_once() -> None:
    async with gateway() as at:
        real = app_module.describe  # type: ignore[attr-defined]
        with patch.object(app_module, "describe", wraps=real) as describe:
            first = await at.client.get("/openapi.json")
            second = await at.client.get("/openapi.json")
        assert first.content == second.content
        assert first.json() == at.app.openapi()
        assert describe.call_count == 1


async def test_a_browser_may_load_nothing_from_elsewhere() -> None:
    async with gateway() as at:
        page = await at.client.get("/docs")
        policy = dict(each.split(" ", 1) for each in page.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert not any("http" in sources or "*" in sources for sources in policy.values())
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "<script>" not in page.text
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert {each.removeprefix("docs/") for each in loaded} == {*FILES, "data:,"}


async def test_what_the_page_loads_is_there_and_nothing_else() -> None:
    async with gateway() as at:
        for name, media in FILES.items():
            answer = await at.client.get(f"/docs/{name}")
            assert (answer.status_code, answer.headers["content-type"]) == (200, media)
            assert len(answer.content) > 100
        for name in ("redoc.standalone.js", "..%2Fconsts.py", "%2e%2e/consts.py"):
            assert (await at.client.get(f"/docs/{name}")).status_code == 404
