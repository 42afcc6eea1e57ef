"""A key ends and a grant goes while others read and write beside it: nothing of one becomes another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.gateway import COMPLETIONS, bearer, completion_body
from tests.support.whole_service import whole_service
from tests.unit.api.management.managed import ROOT

KEYS: Final = "/api/2.0/keys"
USAGE: Final = "/api/2.0/usage"
PERMISSIONS: Final = "/api/2.0/permissions/serving-endpoints"
RESPONSES: Final = "/v1/responses"
SOON_S: Final = 60.0


@dataclass
class Callers:
    """Clients of one server, by the names of their keys."""

    client: httpx.AsyncClient
    keys: dict[str, str]

    async def make(self, name: str, **fields: Any) -> None:
        headers = bearer(self.keys["admin"]) if self.keys else {}
        made = await self.client.post(KEYS, json={"name": name, **fields}, headers=headers)
        assert made.status_code == 200, made.text
        self.keys[name] = made.json()["key"]

    async def get(self, who: str, path: str, status: int = 200) -> dict[str, Any]:
        answer = await self.client.get(path, headers=bearer(self.keys[who]))
        assert answer.status_code == status, (who, path, answer.text)
        found: dict[str, Any] = answer.json()
        return found

    async def change(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """By the administrator."""
        answer = await self.client.request(method, path, json=body, headers=bearer(self.keys["admin"]))
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def ask(self, who: str, endpoint: str, **fields: Any) -> httpx.Response:
        body = completion_body(model=endpoint, **fields)
        return await self.client.post(COMPLETIONS, json=body, headers=bearer(self.keys[who]))

    async def endpoint(self, name: str) -> str:
        """A new endpoint with an inference table; its id."""
        gateway = {"inference_table_config": {"enabled": True}}
        config = {"served_entities": [{"entity_name": "demo"}]}
        made = await self.change("POST", ROOT, {"name": name, "config": config, "ai_gateway": gateway})
        async with asyncio.timeout(SOON_S):
            while (await self.get("admin", f"{ROOT}/{name}"))["state"]["config_update"] != "NOT_UPDATING":
                await asyncio.sleep(0.02)
        return str(made["id"])

    async def grant(self, id: str, *groups: str) -> None:
        grants = [{"group_name": group, "permission_level": "CAN_QUERY"} for group in groups]
        await self.change("PUT", f"{PERMISSIONS}/{id}", {"access_control_list": grants})

    async def logged(self, who: str, endpoint: str) -> list[str]:
        """Whose requests are in the endpoint's table, as `who` reads it."""
        found = await self.get(who, f"{ROOT}/{endpoint}/requests")
        return sorted(each["key_id"] for each in found["requests"])

    async def used(self, who: str, query: str = "") -> dict[tuple[str, str], int]:
        """Requests in the ledger by key and endpoint, as `who` reads it."""
        found = await self.get(who, f"{USAGE}?by=key,endpoint{query}")
        return {(row["key"], row["endpoint"]): sum(row["requests"].values()) for row in found["rows"]}


async def until(found: Callable[[], Any], wanted: object) -> None:
    async with asyncio.timeout(SOON_S):
        while await found() != wanted:
            await asyncio.sleep(0.05)


async def test_nothing_of_a_key_that_ends_or_loses_its_grant_becomes_anothers(tmp_path: Path) -> None:
    async with whole_service(tmp_path) as service:
        transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            callers = Callers(client, {})
            await callers.make("admin", scopes=["inference", "manage"])
            _, west = await callers.endpoint("east"), await callers.endpoint("west")
            await callers.make("alice", endpoints=["east"])
            await callers.make("bob", endpoints=["west"], groups=["crew", "others"])
            await callers.make("carol", groups=["crew"])
            await callers.make("chief", scopes=["inference", "manage"], endpoints=["east"])
            await callers.grant(west, "crew")
            kept = await client.post(
                RESPONSES, json={"model": "east", "input": "Hi"}, headers=bearer(callers.keys["alice"])
            )
            response = f"{RESPONSES}/{kept.json()['id']}"
            assert (await callers.get("alice", response))["id"] == kept.json()["id"]

            service.backend.pauses = {2: 0.5}
            streams = [
                asyncio.create_task(callers.ask(who, endpoint, stream=True))
                for who, endpoint in (("alice", "east"), ("carol", "west"), ("bob", "west"))
            ]
            async with asyncio.timeout(SOON_S):
                while service.backend.running < len(streams):
                    await asyncio.sleep(0.01)
            await callers.change("DELETE", f"{KEYS}/alice")
            await callers.grant(west, "others")
            assert not any(stream.done() for stream in streams)
            statuses = [(await callers.ask(*each)).status_code for each in
                        (("alice", "east"), ("carol", "west"), ("bob", "west"), ("bob", "east"))]  # fmt: skip
            assert statuses == [401, 404, 200, 404]
            for stream in streams:  # what had begun is finished
                assert (await stream).text.endswith("data: [DONE]\n\n")
            service.backend.pauses = {}
            assert (await callers.ask("chief", "east")).status_code == 200

            everything = {
                ("alice", "east"): 2,
                ("bob", "west"): 2,
                ("carol", "west"): 1,
                ("chief", "east"): 1,
            }
            await until(lambda: callers.used("admin"), everything)
            await until(lambda: callers.logged("admin", "east"), ["alice", "alice", "chief"])
            await until(lambda: callers.logged("admin", "west"), ["bob", "bob", "carol"])
            assert await callers.logged("chief", "east") == ["alice", "alice", "chief"]
            await callers.get("chief", f"{ROOT}/west/requests", 404)
            for who in ("bob", "carol"):
                await callers.get(who, f"{ROOT}/west/requests", 403)
                await callers.get(who, response, 404)
            await callers.get("chief", response, 404)
            for who in ("bob", "carol", "chief"):
                assert await callers.used(who) == {k: n for k, n in everything.items() if k[0] == who}
                await callers.get(who, f"{USAGE}?by=key&key=alice", 403)
            assert await callers.used("admin", "&key=alice") == {("alice", "east"): 2}
            assert await callers.used("carol", "&endpoint=east") == {}
            for path in (ROOT, USAGE, response, f"{ROOT}/east/requests", "/v1/models"):
                await callers.get("alice", path, 401)
            shown = [each["name"] for each in (await callers.get("carol", ROOT))["endpoints"]]
            assert "east" in shown
            assert "west" not in shown
            in_force = [each["name"] for each in (await callers.get("admin", KEYS))["keys"]]
            assert "alice" not in in_force
            assert "carol" in in_force

            await callers.make("alice", endpoints=["west"], groups=["others"])  # a new key of an old name
            await callers.get("alice", response, 404)
            assert (await callers.ask("alice", "east")).status_code == 404
            assert (await callers.ask("alice", "west")).status_code == 200
