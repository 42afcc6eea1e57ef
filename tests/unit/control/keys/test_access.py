"""Who may send which command. Every command has a rule, or is for administrators alone."""

from dataclasses import replace

import pytest

from serve_app.control.keys.access import JUDGED_BELOW, OF_ENDPOINT, OF_GATEWAYS, Access
from serve_app.control.keys.permissions import Grants
from serve_app.errors import ModelNotFound, PermissionDenied
from serve_app.types import Caller, Scope
from serve_app.types import control as contract
from serve_app.types.control import (
    Command,
    DeleteEndpoint,
    EndpointList,
    EndpointShown,
    GetEndpoint,
    Grant,
    ListEndpoints,
    PutPermissions,
    ReadLogs,
    ReportUsage,
    UpdateState,
)

ADMIN = Caller(key_id="admin", scopes=frozenset(Scope), salt="")
ALICE = Caller(key_id="alice", scopes=frozenset({Scope.INFERENCE}), salt="")
OWNER = replace(ADMIN, key_id="owner", endpoints=frozenset({"chat"}))
NAMES = {"id-1": "chat", "id-2": "other"}


@pytest.fixture
async def access(database):
    grants = Grants(database, lambda: None, lambda session, id: NAMES.get(id))
    put = grants.handlers()[PutPermissions]
    grant = Grant(principal="bob", kind="user_name", level="CAN_MANAGE")
    await put(PutPermissions(endpoint_id="id-1", grants=(grant,), replaces_all=True), ADMIN)
    return Access(database, grants)


def commands():
    every = [*vars(contract).values()]
    return [each for each in every if isinstance(each, type) and issubclass(each, Command)]


async def test_every_command_without_a_rule_is_for_administrators(access):
    without = 0
    for kind in commands():
        if kind is Command or kind in {*OF_ENDPOINT, *JUDGED_BELOW, *OF_GATEWAYS, ListEndpoints, ReportUsage}:
            continue
        without += 1
        blank = object.__new__(kind)
        await access.check(blank, ADMIN)
        for caller in (ALICE, OWNER):
            with pytest.raises(PermissionDenied):
                await access.check(blank, caller)
    assert without >= 4  # at least those of keys


@pytest.mark.parametrize(
    ("caller", "name", "refusals"),
    [
        (ADMIN, "chat", [None, None, None]),
        (OWNER, "chat", [None, None, None]),
        (OWNER, "other", [ModelNotFound] * 3),
        (ALICE, "chat", [ModelNotFound] * 3),
        (ALICE, "other", [None, PermissionDenied, PermissionDenied]),
        (replace(ALICE, user="bob"), "chat", [None, None, None]),
    ],
)
async def test_an_endpoint_is_seen_and_changed_by_whom_it_is_granted(access, caller, name, refusals):
    sent = (GetEndpoint(name=name), DeleteEndpoint(name=name), ReadLogs(name=name, entity="x"))
    for command, refusal in zip(sent, refusals, strict=True):
        if refusal is None:
            await access.check(command, caller)
        else:
            with pytest.raises(refusal):
                await access.check(command, caller)


async def test_a_list_shows_what_its_caller_may_see(access):
    listed = EndpointList(endpoints=tuple(shown(name) for name in ("chat", "other")))
    for caller, names in ((ADMIN, ["chat", "other"]), (OWNER, ["chat"]), (ALICE, ["other"])):
        await access.check(ListEndpoints(), caller)
        assert [each.name for each in (await access.seen(listed, caller)).endpoints] == names


async def test_usage_is_the_callers_own_or_an_administrators(access):
    await access.check(ReportUsage(), ADMIN)
    await access.check(ReportUsage(key="alice"), ALICE)
    for caller, key in ((ALICE, None), (ALICE, "bob"), (OWNER, None), (OWNER, "alice")):
        with pytest.raises(PermissionDenied):
            await access.check(ReportUsage(key=key), caller)


def shown(name):
    return EndpointShown(
        name=name, id=name, kind="pay_per_token", task=None, creator="", created=0.0, updated=0.0,
        is_ready=True, update=UpdateState.NOT_UPDATING,
    )  # fmt: skip
