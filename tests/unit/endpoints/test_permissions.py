"""Who may do what with an endpoint."""

from dataclasses import replace

import pytest

from serve_app.endpoints.permissions import Level, level_of
from serve_app.types import Caller, Scope
from serve_app.types.control import Grant

ALICE = Caller(
    key_id="key", scopes=frozenset({Scope.INFERENCE}), salt="", user="alice", groups=frozenset({"lab"})
)
BOT = replace(ALICE, user="bot", is_service_principal=True, groups=frozenset())
ADMIN = replace(ALICE, user="root", scopes=frozenset(Scope))


def grant(level, principal, kind="user_name"):
    return Grant(principal=principal, kind=kind, level=level)


@pytest.mark.parametrize(
    ("caller", "grants", "level"),
    [
        (ALICE, [], Level.CAN_QUERY),
        (BOT, [], Level.CAN_QUERY),
        (ADMIN, [], Level.CAN_MANAGE),
        (ADMIN, [grant("CAN_VIEW", "alice")], Level.CAN_MANAGE),
        (ALICE, [grant("CAN_VIEW", "alice")], Level.CAN_VIEW),
        (ALICE, [grant("CAN_MANAGE", "bob")], None),
        (ALICE, [grant("CAN_QUERY", "lab", "group_name")], Level.CAN_QUERY),
        (ALICE, [grant("CAN_VIEW", "alice"), grant("CAN_QUERY", "lab", "group_name")], Level.CAN_QUERY),
        (ALICE, [grant("CAN_MANAGE", "alice"), grant("CAN_VIEW", "lab", "group_name")], Level.CAN_MANAGE),
        (ALICE, [grant("CAN_QUERY", "lab")], None),  # a user of a group's name
        (ALICE, [grant("CAN_QUERY", "alice", "group_name")], None),
        (ALICE, [grant("CAN_QUERY", "alice", "service_principal_name")], None),
        (BOT, [grant("CAN_QUERY", "bot")], None),
        (BOT, [grant("CAN_QUERY", "bot", "service_principal_name")], Level.CAN_QUERY),
        (BOT, [grant("CAN_QUERY", "users", "group_name")], Level.CAN_QUERY),
        (replace(ALICE, user=""), [grant("CAN_QUERY", "key")], Level.CAN_QUERY),
        (replace(ALICE, endpoints=frozenset({"chat"})), [], Level.CAN_QUERY),
        (replace(ALICE, endpoints=frozenset({"other"})), [grant("CAN_MANAGE", "alice")], None),
        (replace(ADMIN, endpoints=frozenset({"other"})), [], None),
    ],
)
def test_the_highest_grant_counts_within_the_keys_own_limit(caller, grants, level):
    assert level_of(caller, "chat", grants) is level
