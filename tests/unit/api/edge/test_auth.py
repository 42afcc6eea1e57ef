"""Where a key may stand in a request."""

from __future__ import annotations

import pytest

from serve_app.accounts.keys import new_key
from tests.support.gateway import gateway


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer KEY"}, 200),
        ({"x-api-key": "KEY"}, 200),
        ({"x-api-key": "sk-another"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "unused", "authorization": "Bearer KEY"}, 200),
        ({"x-api-key": "KEY", "authorization": "Bearer sk-another"}, 401),
        ({"x-api-key": "Bearer KEY"}, 401),
        ({}, 401),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v2", "/serving-endpoints/anthropic/v1/models"])
async def test_a_key_may_come_as_x_api_key(path: str, headers: dict[str, str], status: int) -> None:
    """Anthropic's clients send it so; `Authorization` goes first, as in Databricks' examples."""
    key, line = new_key("somebody")
    async with gateway(keys=line) as g:
        sent = {name: value.replace("KEY", key) for name, value in headers.items()}
        found = await g.client.get(path, headers=sent)
    assert found.status_code == status
    assert key not in found.text
