"""Keys of the key file beside those that were made at run time: listed, and changed by nothing."""

from __future__ import annotations

from serve_app.accounts.keys import new_key
from serve_app.control.database.database import Database
from tests.support.gateway import bearer
from tests.support.run_time_keys import KeyPlane
from tests.unit.api.management.managed import ROOT, described, managed

KEYS = "/api/2.0/keys"


async def test_keys_of_the_file_are_listed_and_read_only(database: Database) -> None:
    operator, line = new_key("operator", ["inference", "manage"])
    plane = KeyPlane(database)
    async with managed(plane, keys=line, at_run_time=True) as g:
        plane.gateways.append(g.services)
        await plane.push()
        g.client.headers.update(bearer(operator))
        assert (await g.post(KEYS, {"name": "alice"})).status_code == 200
        listed = described(g, "GET", KEYS, await g.client.get(KEYS))
        assert [key["name"] for key in listed["keys"]] == ["alice"]
        assert listed["declared_keys"] == [{"name": "operator", "scopes": ["inference", "manage"]}]
        for method, path, body in (
            ("DELETE", f"{KEYS}/operator", None),
            ("PATCH", f"{KEYS}/operator", {"comment": "mine"}),
            ("POST", f"{KEYS}/operator/rotate", {}),
        ):
            answer = await g.client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["error_code"]) == (409, "RESOURCE_CONFLICT"), method
            assert "key file" in answer.json()["message"]
        assert (await g.client.delete(f"{KEYS}/nobody")).status_code == 404


async def test_a_missing_scope_is_named_once() -> None:
    key, line = new_key("reader", ["inference"])
    async with managed(keys=line) as g:
        for method, path in (("GET", KEYS), ("DELETE", f"{ROOT}/talk"), ("GET", "/api/2.0/token/list")):
            answer = await g.client.request(method, path, headers=bearer(key))
            assert answer.status_code == 403
            assert answer.json()["message"].count("'manage'") == 1, answer.text
