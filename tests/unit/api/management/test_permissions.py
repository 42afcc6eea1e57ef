"""Grants of an endpoint, by its id."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.unit.api.management.managed import BODY, ROOT, described, managed

BASE: Final = "/api/2.0/permissions/serving-endpoints"
TEMPLATE: Final = f"{BASE}/{{id}}"


def grants(**levels: str) -> dict[str, Any]:
    """user_ann="CAN_VIEW" is of the user `ann`, group_sea of the group `sea`."""
    listed = [
        {f"{kind}_name": name, "permission_level": level}
        for word, level in levels.items()
        for kind, _, name in [word.partition("_")]
    ]
    return {"access_control_list": listed}


def shown(answer: dict[str, Any]) -> dict[str, str]:
    return {
        each["display_name"]: each["all_permissions"][0]["permission_level"]
        for each in answer["access_control_list"]
    }


async def test_grants_are_set_added_and_replaced() -> None:
    async with managed() as g:
        made = (await g.post(ROOT, BODY)).json()
        path = f"{BASE}/{made['id']}"
        first = described(g, "GET", TEMPLATE, await g.client.get(path))
        assert first == {
            "object_id": f"/serving-endpoints/{made['id']}",
            "object_type": "serving-endpoint",
            "access_control_list": [],
        }
        put = await g.client.put(path, json=grants(user_ann="CAN_VIEW", group_sea="CAN_QUERY"))
        assert shown(described(g, "PUT", TEMPLATE, put)) == {"ann": "CAN_VIEW", "sea": "CAN_QUERY"}
        assert put.json()["access_control_list"][1] == {
            "group_name": "sea",
            "display_name": "sea",
            "all_permissions": [{"permission_level": "CAN_QUERY", "inherited": False}],
        }
        patch = await g.client.patch(path, json=grants(user_ann="CAN_MANAGE"))
        assert shown(described(g, "PATCH", TEMPLATE, patch)) == {"ann": "CAN_MANAGE", "sea": "CAN_QUERY"}
        assert shown((await g.client.put(path, json=grants(user_ann="CAN_VIEW"))).json()) == {
            "ann": "CAN_VIEW"
        }
        assert shown((await g.client.put(path, json={})).json()) == {}


async def test_the_levels_are_listed_for_an_endpoint_that_is_there() -> None:
    async with managed() as g:
        await g.post(ROOT, BODY)
        answer = await g.client.get(f"{BASE}/e-01/permissionLevels")
        told = described(g, "GET", f"{TEMPLATE}/permissionLevels", answer)
        levels = [each["permission_level"] for each in told["permission_levels"]]
        assert levels == ["CAN_VIEW", "CAN_QUERY", "CAN_MANAGE"]
        for path in (f"{BASE}/e-09", f"{BASE}/e-09/permissionLevels"):
            assert (await g.client.get(path)).status_code == 404


@pytest.mark.parametrize(
    ("grant", "message"),
    [
        ({"permission_level": "CAN_VIEW"}, "must have one of user_name, group_name, service_principal_name"),
        ({"user_name": "a", "group_name": "b", "permission_level": "CAN_VIEW"}, "must have one of user_name"),
        ({"user_name": "a"}, "access_control_list.0.permission_level: is required"),
        ({"user_name": "a", "permission_level": "OWNS"}, "must be one of: CAN_VIEW, CAN_QUERY, CAN_MANAGE"),
        ({"user_name": "", "permission_level": "CAN_VIEW"}, "user_name: must be a string of 1 to 256"),
    ],
)
async def test_a_bad_grant_is_named(grant: dict[str, Any], message: str) -> None:
    async with managed() as g:
        await g.post(ROOT, BODY)
        answer = await g.client.put(f"{BASE}/e-01", json={"access_control_list": [grant]})
    assert answer.status_code == 400
    assert message in answer.json()["message"]
