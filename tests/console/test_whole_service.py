"""What the tests of pages stand on works: an endpoint and a key made over HTTP answer and are counted."""

from __future__ import annotations

import asyncio

import httpx

from tests.console.conftest import MANAGER, Server
from tests.support.gateway import bearer


async def test_endpoints_keys_and_usage_are_those_of_a_real_control_plane(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers=bearer(MANAGER), timeout=60) as client:
        entity = {"entity_name": "demo", "entity_version": "2", "workload_size": "Small"}
        body = {"name": "whole", "config": {"served_entities": [entity]}}
        made = await client.post("/api/2.0/serving-endpoints", json=body)
        assert made.status_code == 200, made.text
        key = (await client.post("/api/2.0/keys", json={"name": "whole", "endpoints": ["whole"]})).json()[
            "key"
        ]
        asked = {"model": "whole", "messages": [{"role": "user", "content": "Hi"}]}
        async with asyncio.timeout(60):
            while (
                await client.post("/v1/chat/completions", json=asked, headers=bearer(key))
            ).status_code != 200:
                await asyncio.sleep(0.05)
            while "whole" not in (await client.get("/api/2.0/usage", params={"by": "key"})).text:
                await asyncio.sleep(0.05)
        for path in ("/api/2.0/serving-endpoints/whole", "/api/2.0/keys/whole"):
            await client.delete(path)
