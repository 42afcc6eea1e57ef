"""The OpenAPI document of a gateway over a fake backend, made once for all tests of a process."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app


@cache
def fake_document(v1_dialect: str = "openai") -> dict[str, Any]:
    """Not to be changed."""
    return fake_app(FakeBackend(), v1_dialect=v1_dialect).openapi()
