"""A gateway with a control plane, and answers that its OpenAPI document describes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from serve_app.api.backend import Management
from tests.support.described import Document
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import Gateway, gateway

ROOT: Final = "/api/2.0/serving-endpoints"
ENTITY: Final = {"entity_name": "harbor-8b", "entity_version": "2"}
BODY: Final = {"name": "talk", "config": {"served_entities": [ENTITY]}}


@asynccontextmanager
async def managed(management: Management | None = None, **options: Any) -> AsyncIterator[Gateway]:
    async with gateway(management=management or FakeManagement(), **options) as g:
        yield g


def described(g: Gateway, method: str, template: str, answer: httpx.Response) -> dict[str, Any]:
    """The JSON of an answer that the OpenAPI document describes."""
    problems = Document(g.app.openapi()).problems(
        method, template, answer.status_code, answer.headers["content-type"], answer.content
    )
    if found := list(problems):
        raise AssertionError(found)
    told: dict[str, Any] = answer.json()
    return told
