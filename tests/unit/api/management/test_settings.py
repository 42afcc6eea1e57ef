"""Limits, guardrails, tags and notes of an endpoint."""

from __future__ import annotations

from typing import Any, Final

import pytest

from serve_app.types.control import PutAiGateway
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import Gateway
from tests.unit.api.management.managed import BODY, ROOT, described, managed

AI_GATEWAY: Final = f"{ROOT}/talk/ai-gateway"
OLD: Final = f"{ROOT}/talk/rate-limits"


async def put(g: Gateway, path: str, body: Any) -> Any:
    answer = await g.client.put(path, json=body)
    return described(g, "PUT", path.replace("talk", "{endpoint}"), answer)


async def test_the_ai_gateway_is_replaced_as_a_whole() -> None:
    async with managed() as g:
        await g.post(ROOT, BODY)
        limits = [{"tokens": 9, "key": "user", "renewal_period": "minute"}]
        pii = {"behavior": "MASK", "phone_regions": ["DE"]}
        rules = {"pii": pii, "invalid_keywords": ["x"], "safety": False, "valid_topics": []}
        guardrails = {"output": rules}
        assert await put(g, AI_GATEWAY, {"rate_limits": limits, "guardrails": guardrails}) == {
            "rate_limits": limits,
            "guardrails": guardrails,
        }
        table = {"enabled": True, "catalog_name": "c", "schema_name": "s", "table_name_prefix": "t"}
        assert await put(g, AI_GATEWAY, {"inference_table_config": table}) == {
            "inference_table_config": table
        }
        shown = (await g.client.get(f"{ROOT}/talk")).json()
        assert shown["ai_gateway"] == {"inference_table_config": table}
        assert await put(g, AI_GATEWAY, {}) == {}


async def test_what_a_client_leaves_out_because_it_is_false_is_false() -> None:
    """SDKs in Go leave out every value that is false."""
    async with managed() as g:
        await g.post(ROOT, BODY)
        body: dict[str, Any] = {"usage_tracking_config": {}, "fallback_config": {}}
        off = {"enabled": False}
        assert await put(g, AI_GATEWAY, body) == {"usage_tracking_config": off, "fallback_config": off}


async def test_the_older_route_sets_limits_and_nothing_else() -> None:
    management = FakeManagement()
    limit = {"calls": 3, "key": "user", "renewal_period": "minute"}
    async with managed(management) as g:
        await g.post(ROOT, {**BODY, "ai_gateway": {"fallback_config": {"enabled": True}}})
        assert await put(g, OLD, {"rate_limits": [limit]}) == {"rate_limits": [limit]}
        shown = (await g.client.get(f"{ROOT}/talk")).json()
        assert shown["ai_gateway"] == {"fallback_config": {"enabled": True}, "rate_limits": [limit]}
        assert await put(g, OLD, {}) == {"rate_limits": []}
        assert isinstance(management.commands[-1], PutAiGateway)
        assert management.commands[-1].settings == {"rate_limits": None}


async def test_tags_are_added_and_removed() -> None:
    async with managed() as g:
        await g.post(ROOT, {**BODY, "tags": [{"key": "spare"}]})
        body = {"add_tags": [{"key": "team", "value": "sea"}], "delete_tags": ["spare"]}
        answer = await g.client.patch(f"{ROOT}/talk/tags", json=body)
        told = described(g, "PATCH", f"{ROOT}/{{endpoint}}/tags", answer)
    assert told == {"tags": [{"key": "team", "value": "sea"}]}


async def test_notes_without_an_effect_are_kept() -> None:
    mail = {"on_update_success": ["ops@example.org"]}
    async with managed() as g:
        await g.post(ROOT, BODY)
        path = f"{ROOT}/talk/notifications"
        sent = {**mail, "on_update_failure": None}
        answer = await g.client.patch(path, json={"email_notifications": sent})
        told = described(g, "PATCH", path.replace("talk", "{endpoint}"), answer)
        assert told == {"name": "talk", "email_notifications": mail}
        path = f"{ROOT}/talk/telemetry-config"
        answer = await g.client.patch(path, json={"telemetry_config": {"telemetry_profile_id": "p"}})
        told = described(g, "PATCH", path.replace("talk", "{endpoint}"), answer)
        assert told["telemetry_config"] == {"telemetry_profile_id": "p"}
        assert told["email_notifications"] == mail
        told = (await g.client.patch(path, json={})).json()
        assert "telemetry_config" not in told


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("PUT", "ai-gateway", {"rate_limits": [{"key": "user"}]}, "rate_limits.0: one of calls and tokens"),
        ("PUT", "ai-gateway", {"rate_limits": [{"calls": -1}]}, "calls: must be an integer from 0 to"),
        ("PUT", "ai-gateway", {"rate_limits": 1}, "rate_limits: must be a list of 0 to 100 objects"),
        ("PUT", "ai-gateway", {"guardrails": {"input": {"words": []}}}, 'json: unknown field "words"'),
        ("PUT", "ai-gateway", {"inference_table_config": {"catalog_name": "a/b"}}, "must be 1 to 255"),
        ("PUT", "rate-limits", {"rate_limits": [{"tokens": 1}]}, 'json: unknown field "tokens"'),
        ("PUT", "rate-limits", {"rate_limits": [{"calls": 1, "key": "user_group"}]}, "one of: endpoint, us"),
        ("PATCH", "tags", {"add_tags": [{}]}, "add_tags.0.key: is required"),
        ("PATCH", "tags", {"delete_tags": "x"}, "delete_tags: must be a list of up to 64 strings"),
        ("PATCH", "notifications", {"email_notifications": {"on_update_failure": "x"}}, "must be a list of"),
    ],
)  # fmt: skip
async def test_a_bad_setting_is_named_with_its_range(method: str, path: str, body: Any, message: str) -> None:
    management = FakeManagement()
    async with managed(management) as g:
        await g.post(ROOT, BODY)
        answer = await g.client.request(method, f"{ROOT}/talk/{path}", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["message"]
    assert len(management.commands) == 1
