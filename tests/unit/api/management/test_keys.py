"""The routes of keys over a real database: each change is in force on every gateway at once."""

import logging
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from serve_app.accounts.keys import new_key
from tests.support.gateway import CHAT, bearer, chat_body, gateway
from tests.support.run_time_keys import KeyPlane

KEYS = "/api/2.0/keys"
OPERATOR, LINE = new_key("operator", ["inference", "manage"])


@asynccontextmanager
async def gateways(database, count=2, keys=LINE, **options):
    """Gateways of one control plane of keys."""
    plane = KeyPlane(database, {"id-1": "demo"})
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            g = await stack.enter_async_context(
                gateway(keys=keys, management=plane, at_run_time=True, **options)
            )
            plane.gateways.append(g.services)
            found.append(g)
        await plane.push()
        yield found


async def create(g, key=OPERATOR, **fields):
    return await g.post(KEYS, fields, headers=bearer(key))


async def statuses(found, key):
    return [(await g.post(CHAT, chat_body(), headers=bearer(key))).status_code for g in found]


async def test_a_key_is_made_used_changed_and_ended_on_every_gateway(database):
    async with gateways(database) as found:
        answer = await create(found[0], name="alice", groups=["lab"], budget=10, lifetime_seconds=60)
        assert answer.status_code == 200
        made = answer.json()
        key, info = made["key"], made["key_info"]
        assert info["prefix"] == key[:8]
        assert info["expiry_time"] - info["creation_time"] == 60_000
        assert (info["user"], info["groups"], info["scopes"]) == ("alice", ["lab"], ["inference"])
        assert await statuses(found, key) == [200, 200]
        path = f"{KEYS}/{info['id']}"
        limited = await found[1].client.patch(
            path, json={"endpoints": ["org/other"]}, headers=bearer(OPERATOR)
        )
        assert limited.json() == {**info, "endpoints": ["org/other"]}
        assert await statuses(found, key) == [404, 404]
        nothing = await found[0].client.patch(path, json={"scopes": ["metrics"]}, headers=bearer(OPERATOR))
        assert nothing.status_code == 200
        assert await statuses(found, key) == [403, 403]
        ended = await found[1].client.delete(path, headers=bearer(OPERATOR))
        assert (ended.status_code, ended.json()) == (200, {})
        assert await statuses(found, key) == [401, 401]
        assert (await found[0].client.get(KEYS, headers=bearer(OPERATOR))).json()["keys"] == []
        (left,) = (await found[0].client.get(f"{KEYS}?all=true", headers=bearer(OPERATOR))).json()["keys"]
        assert left["id"] == info["id"]
        assert left["revocation_time"] >= left["creation_time"]


async def test_a_key_is_rotated_with_and_without_grace(database):
    async with gateways(database) as found:
        first = (await create(found[0], name="alice")).json()
        path = f"{KEYS}/{first['key_info']['id']}/rotate"
        second = await found[1].post(path, {"grace_seconds": 3600}, headers=bearer(OPERATOR))
        assert second.status_code == 200
        assert second.json()["key_info"]["id"] == first["key_info"]["id"]
        for key in (first["key"], second.json()["key"]):
            assert await statuses(found, key) == [200, 200]
        third = await found[0].post(path, {}, headers=bearer(OPERATOR))
        assert await statuses(found, second.json()["key"]) == [401, 401]
        assert await statuses(found, third.json()["key"]) == [200, 200]
        for body in ({"grace_seconds": -1}, {"grace_seconds": 30 * 86_400 + 1}, {"grace": 1}):
            refused = await found[0].post(path, body, headers=bearer(OPERATOR))
            assert refused.status_code == 400
            assert next(iter(body)) in refused.json()["message"]
        assert (await found[0].post(path, {}, headers=bearer(third.json()["key"]))).status_code == 403


async def test_a_key_is_shown_once_and_never_again(database, caplog):
    caplog.set_level(logging.DEBUG)
    async with gateways(database, 1) as (g,):
        key = (await create(g, name="alice")).json()["key"]
        shown = [
            await g.client.get(KEYS, headers=bearer(OPERATOR)),
            await create(g, name="alice"),
            await g.client.patch(f"{KEYS}/alice", json={"comment": "x"}, headers=bearer(OPERATOR)),
            await g.client.get("/v1/models", headers=bearer(key)),
            await g.client.get("/nowhere", headers=bearer(key)),
            await g.post(KEYS, {}, headers=bearer(key)),
            await g.client.delete(f"{KEYS}/alice", headers=bearer(OPERATOR)),
            await g.client.get("/v1/models", headers=bearer(key)),
        ]
        for answer in shown:
            assert key[8:] not in answer.text
            assert key[8:] not in str(answer.headers)
        assert key[8:] not in caplog.text
        assert key[8:] not in repr([vars(record) for record in caplog.records])


async def test_a_name_of_the_key_file_cannot_be_taken(database):
    async with gateways(database, 1) as (g,):
        for name in ("operator", "anonymous"):
            answer = await create(g, name=name)
            assert (answer.status_code, answer.json()["error_code"]) == (409, "RESOURCE_ALREADY_EXISTS")
        assert (await create(g, name="new")).status_code == 200
        assert (await create(g, name="new")).status_code == 409


async def test_the_first_key_of_an_open_server_manages_and_closes_it(database):
    async with gateways(database, 1, keys="") as (g,):
        refused = await g.post(KEYS, {"name": "alice"})
        assert (refused.status_code, refused.json()["error_code"]) == (409, "RESOURCE_CONFLICT")
        assert "scope 'manage'" in refused.json()["message"]
        assert (await g.chat()).status_code == 200
        made = await g.post(KEYS, {"name": "admin", "scopes": ["inference", "manage"]})
        key = made.json()["key"]
        assert (await g.chat()).status_code == 401
        assert (await create(g, key, name="alice")).status_code == 200
        last = await g.client.delete(f"{KEYS}/admin", headers=bearer(key))
        assert (last.status_code, last.json()["error_code"]) == (409, "RESOURCE_CONFLICT")
        assert (await g.post(CHAT, chat_body(), headers=bearer(key))).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://rebound.example", "host": "rebound.example", "sec-fetch-site": "same-origin"},
    ],
)
async def test_a_page_of_another_site_cannot_close_an_open_server(database, headers):
    async with gateways(database, 1, keys="") as (g,):
        body = {"name": "evil", "scopes": ["inference", "manage"]}
        answer = await g.post(KEYS, body, headers=headers)
        assert (answer.status_code, answer.json()["error_code"]) == (403, "PERMISSION_DENIED")
        assert (await g.chat()).status_code == 200
        near = {"origin": "http://127.0.0.1:8000", "host": "127.0.0.1:8000", "sec-fetch-site": "same-origin"}
        assert (await g.post(KEYS, body, headers=near)).status_code == 200


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("name", {}),
        ("name", {"name": "a b"}),
        ("name", {"name": 5}),
        ("scopes", {"name": "x", "scopes": []}),
        ("scopes", {"name": "x", "scopes": ["root"]}),
        ("scopes", {"name": "x", "scopes": "manage"}),
        ("lifetime_seconds", {"name": "x", "lifetime_seconds": 0}),
        ("budget", {"name": "x", "budget": -1}),
        ("budget", {"name": "x", "budget": True}),
        ("soft_budget", {"name": "x", "budget": 1, "soft_budget": 2}),
        ("currency", {"name": "x", "currency": "usd"}),
        ("owner", {"name": "x", "owner": "y"}),
    ],
)
async def test_a_bad_field_is_named_in_databricks_shape(database, field, body):
    async with gateways(database, 1) as (g,):
        answer = await create(g, **body)
        assert answer.status_code == 400
        assert answer.json().keys() == {"error_code", "message", "error"}
        assert field in answer.json()["message"]
        assert (await g.client.get(KEYS, headers=bearer(OPERATOR))).json()["keys"] == []


async def test_keys_that_nobody_has_are_not_found(database):
    async with gateways(database, 1) as (g,):
        for method, body in (("PATCH", {"comment": "x"}), ("DELETE", None)):
            answer = await g.client.request(method, f"{KEYS}/none", json=body, headers=bearer(OPERATOR))
            assert (answer.status_code, answer.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


async def test_tokens_are_keys_of_the_callers_own_user(database):
    async with gateways(database, 1) as (g,):
        admin = (await create(g, name="admin", user="ann", scopes=["inference", "manage"])).json()["key"]
        token = {"comment": "mine", "lifetime_seconds": 60, "scopes": ["all-apis"]}
        made = (await g.post("/api/2.0/token/create", token, headers=bearer(admin))).json()
        assert made["token_info"]["comment"] == "mine"
        me = await g.client.get("/api/2.0/preview/scim/v2/Me", headers=bearer(made["token_value"]))
        assert (me.json()["userName"], me.json()["active"]) == ("ann", True)
        listed = await g.client.get("/api/2.0/token/list", headers=bearer(admin))
        ids = [each["token_id"] for each in listed.json()["token_infos"]]
        assert len(ids) == 2
        more = await g.post("/api/2.0/token/create", {"scopes": ["metrics"]}, headers=bearer(admin))
        assert more.status_code == 400
        assert "metrics" not in ids
        other = await g.post("/api/2.0/token/delete", {"token_id": ids[0]}, headers=bearer(OPERATOR))
        assert other.status_code == 404
        mine = made["token_info"]["token_id"]
        gone = await g.post("/api/2.0/token/delete", {"token_id": mine}, headers=bearer(admin))
        assert (gone.status_code, gone.json()) == (200, {})
        assert await statuses([g], made["token_value"]) == [401]
