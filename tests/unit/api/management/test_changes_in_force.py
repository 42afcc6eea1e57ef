"""The answer to a change is true when it arrives, and says so where it is not on every gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from tests.support.fakes_management import FakeManagement
from tests.support.gateway import bearer, chat_body
from tests.support.whole_service import whole_service
from tests.unit.api.management.managed import BODY, ROOT, managed

KEYS = "/api/2.0/keys"
BEHIND = "x-gateways-behind"


async def test_a_new_key_a_limit_a_grant_and_a_revocation_are_in_force_with_their_answers(
    tmp_path: Path,
) -> None:
    async with whole_service(tmp_path) as service:
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            made = await client.post(KEYS, json={"name": "admin", "scopes": ["inference", "manage"]})
            admin = bearer(made.json()["key"])
            created = await client.post(
                ROOT,
                json={"name": "mine", "config": {"served_entities": [{"entity_name": "demo"}]}},
                headers=admin,
            )
            id = created.json()["id"]
            async with asyncio.timeout(60):
                while True:
                    shown = (await client.get(f"{ROOT}/mine", headers=admin)).json()
                    if shown["state"]["config_update"] == "NOT_UPDATING":
                        break
                    await asyncio.sleep(0.02)

            async def chat(key: dict[str, str]) -> int:
                body = chat_body(model="mine", max_tokens=1)
                return (await client.post("/v1/chat/completions", json=body, headers=key)).status_code

            for number in range(5):
                made = await client.post(KEYS, json={"name": f"k{number}"}, headers=admin)
                assert BEHIND not in made.headers
                key = bearer(made.json()["key"])
                assert await chat(key) == 200
                grant = {"user_name": "somebody-else", "permission_level": "CAN_QUERY"}
                permissions = f"/api/2.0/permissions/serving-endpoints/{id}"
                await client.put(permissions, json={"access_control_list": [grant]}, headers=admin)
                assert await chat(key) == 404
                await client.put(permissions, json={"access_control_list": []}, headers=admin)
                assert await chat(key) == 200
                limit = {"calls": 0, "key": "endpoint", "renewal_period": "minute"}
                await client.put(f"{ROOT}/mine/ai-gateway", json={"rate_limits": [limit]}, headers=admin)
                assert await chat(key) == 429
                await client.put(f"{ROOT}/mine/ai-gateway", json={}, headers=admin)
                assert await chat(key) == 200
                await client.delete(f"{KEYS}/k{number}", headers=admin)
                assert await chat(key) == 401
            await client.delete(f"{ROOT}/mine", headers=admin)
            assert await chat(admin) == 404


async def test_an_answer_tells_how_many_gateways_do_not_serve_by_it_yet() -> None:
    management = FakeManagement()
    async with managed(management) as g:
        await g.post(ROOT, BODY)
        put = await g.client.put(f"{ROOT}/talk/ai-gateway", json={})
        assert BEHIND not in put.headers
        management.behind = 2
        put = await g.client.put(f"{ROOT}/talk/ai-gateway", json={})
        assert (put.status_code, put.headers[BEHIND]) == (200, "2")
        assert BEHIND not in (await g.client.get(f"{ROOT}/talk")).headers
        gone = await g.client.delete(f"{ROOT}/talk")
        assert (gone.status_code, gone.headers[BEHIND]) == (200, "2")
