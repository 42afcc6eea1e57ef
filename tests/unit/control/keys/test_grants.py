"""Grants in the database: set, changed, shown in snapshots, and gone with their endpoint."""

from dataclasses import replace

import pytest

from serve_app.control.keys.permissions import Grants
from serve_app.errors import InvalidField, ModelNotFound, PermissionDenied
from serve_app.types import Caller, Scope
from serve_app.types.control import GetPermissions, Grant, PutPermissions

ADMIN = Caller(key_id="admin", scopes=frozenset(Scope), salt="")
ALICE = Caller(key_id="alice", scopes=frozenset({Scope.INFERENCE}), salt="", groups=frozenset({"lab"}))


def grant(principal, level="CAN_QUERY", kind="user_name"):
    return Grant(principal=principal, kind=kind, level=level)


class Case:
    def __init__(self, database):
        self.names = {"id-1": "chat", "id-2": "other"}
        self.changes = 0
        self.database = database
        self.grants = Grants(database, self.changed, lambda session, id: self.names.get(id))
        self.handlers = self.grants.handlers()

    def changed(self):
        self.changes += 1

    async def put(self, *grants, caller=ADMIN, id="id-1", replaces_all=True):
        command = PutPermissions(endpoint_id=id, grants=grants, replaces_all=replaces_all)
        return (await self.handlers[PutPermissions](command, caller)).grants

    async def get(self, caller=ADMIN, id="id-1"):
        return (await self.handlers[GetPermissions](GetPermissions(endpoint_id=id), caller)).grants

    async def by_endpoint(self):
        return await self.database.run(self.grants.by_endpoint)


@pytest.fixture
def case(database):
    return Case(database)


@pytest.fixture
def each_case(each_database):
    """As `case`, once on each kind of database."""
    return Case(each_database)


async def test_put_replaces_all_and_patch_those_that_it_names(each_case):
    assert await each_case.get() == ()
    lab = grant("lab", "CAN_VIEW", "group_name")
    assert await each_case.put(grant("alice"), lab) == (lab, grant("alice"))
    assert await each_case.put(grant("alice", "CAN_MANAGE"), replaces_all=False) == (
        lab,
        grant("alice", "CAN_MANAGE"),
    )
    assert await each_case.put(grant("bob")) == (grant("bob"),) == await each_case.get()
    assert await each_case.by_endpoint() == {"chat": (grant("bob"),)}
    assert each_case.changes == 3
    assert await each_case.put() == ()
    assert await each_case.by_endpoint() == {}


async def test_grants_follow_the_id_and_not_the_name(each_case):
    await each_case.put(grant("alice"))
    each_case.names = {"id-3": "chat"}  # deleted, and another one made of that name
    assert await each_case.by_endpoint() == {}
    assert await each_case.get(id="id-3") == ()
    with pytest.raises(ModelNotFound):
        await each_case.get(id="id-1")


async def test_only_who_manages_an_endpoint_changes_its_grants(case):
    for caller in (ALICE, replace(ADMIN, endpoints=frozenset({"other"}))):
        with pytest.raises((PermissionDenied, ModelNotFound)):
            await case.put(grant("alice"), caller=caller)
    await case.put(grant("lab", "CAN_MANAGE", "group_name"))
    assert await case.put(grant("alice", "CAN_VIEW"), caller=ALICE) == (grant("alice", "CAN_VIEW"),)
    with pytest.raises(PermissionDenied, match="CAN_MANAGE"):
        await case.put(grant("alice", "CAN_MANAGE"), caller=ALICE)
    assert await case.get(ALICE) == (grant("alice", "CAN_VIEW"),)
    await case.put(grant("bob"))
    with pytest.raises(ModelNotFound):
        await case.get(ALICE)


@pytest.mark.parametrize(
    ("field", "grants"),
    [
        ("access_control_list", [grant("x", kind="robot_name")]),
        ("permission_level", [grant("x", "CAN_DO")]),
        ("user_name", [grant("")]),
        ("user_name", [grant("x"), grant("x", "CAN_VIEW")]),
        ("access_control_list", [grant(str(n)) for n in range(1_001)]),
    ],
)
async def test_a_bad_list_is_refused_as_a_whole(case, field, grants):
    await case.put(grant("alice"))
    with pytest.raises(InvalidField) as caught:
        await case.put(*grants)
    assert caught.value.param == field
    assert await case.get() == (grant("alice"),)


async def test_an_endpoint_has_no_more_grants_than_one_request(case):
    await case.put(*(grant(str(n)) for n in range(1_000)))
    with pytest.raises(InvalidField, match="at most 1000"):
        await case.put(grant("one more"), replaces_all=False)
    assert len(await case.get()) == 1_000
