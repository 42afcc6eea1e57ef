"""GET /v1/models in Anthropic's shape, for Anthropic's clients."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from anthropic.types import ModelInfo

from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import gateway

VERSION: Final = {"anthropic-version": "2023-06-01"}
NAMES: Final = ["a", "b", "c", "d"]


async def asked(path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with gateway(FakeBackend(infos=[model_info(name) for name in NAMES])) as g:
        found = await g.client.get(path, headers=headers)
    return found.status_code, found.json()


@pytest.mark.parametrize(
    ("base", "headers"),
    [
        ("", VERSION),
        ("/anthropic", {}),
        ("/serving-endpoints/anthropic", {}),
        ("/ai-gateway/anthropic", VERSION),
    ],
)
async def test_models_are_listed_in_anthropics_shape_for_its_clients(
    base: str, headers: dict[str, str]
) -> None:
    status, page = await asked(f"{base}/v1/models", headers)
    assert status == 200
    assert [
        ModelInfo.model_validate_json(json.dumps(each), strict=True).id for each in page.pop("data")
    ] == NAMES
    assert page == {"has_more": False, "first_id": "a", "last_id": "d"}
    status, one = await asked(f"{base}/v1/models/b", headers)
    assert (status, one) == (200, {
        "type": "model", "id": "b", "display_name": "b", "created_at": "2023-11-14T22:13:20Z",
        "lifecycle": "active", "max_input_tokens": 256,
    })  # fmt: skip
    status, error = await asked(f"{base}/v1/models/nothing", headers)
    assert (status, error["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("headers", [{}, {**VERSION, "x-api-dialect": "openai"}])
async def test_others_have_openais_shape(headers: dict[str, str]) -> None:
    status, listed = await asked("/v1/models", headers)
    assert (status, listed["object"], len(listed["data"])) == (200, "list", len(NAMES))
    status, error = await asked("/v1/models/nothing", headers)
    assert (status, list(error["error"])) == (404, ["message", "type", "param", "code"])


@pytest.mark.parametrize(
    ("query", "names", "has_more"),
    [
        ("limit=2", ["a", "b"], True),
        ("limit=4", NAMES, False),
        ("limit=1000", NAMES, False),
        ("after_id=b", ["c", "d"], False),
        ("limit=1&after_id=b", ["c"], True),
        ("after_id=d", [], False),
        ("before_id=c", ["a", "b"], False),
        ("limit=1&before_id=c", ["b"], True),
        ("before_id=a", [], False),
    ],
)
async def test_the_list_has_pages(query: str, names: list[str], has_more: bool) -> None:
    status, page = await asked(f"/v1/models?{query}", VERSION)
    assert (status, [each["id"] for each in page["data"]], page["has_more"]) == (200, names, has_more)
    ends = (names[0], names[-1]) if names else (None, None)
    assert (page["first_id"], page["last_id"]) == ends


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=-1", "limit"),
        ("after_id=nothing", "after_id"),
        ("before_id=nothing", "before_id"),
    ],
)
async def test_a_page_that_cannot_be_is_refused_by_name(query: str, field: str) -> None:
    status, error = await asked(f"/v1/models?{query}", VERSION)
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    assert error["error"]["message"].startswith(f"{field}: ")
