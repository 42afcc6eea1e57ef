"""Grants as the console shows them, and the bodies of its forms."""

from __future__ import annotations

import pytest

from serve_app.api.management.endpoints.permissions import _KINDS, LEVELS
from serve_app.console.views.grants import KINDS, GrantFields, grant_body, grant_views, rest_body
from serve_app.console.views.problem import Problem
from tests.support.console_forms import form_of

ANSWER = {
    "access_control_list": [
        {"group_name": "sea", "all_permissions": [{"permission_level": "CAN_QUERY", "inherited": False}]},
        {"user_name": "sea", "all_permissions": [{"permission_level": "CAN_MANAGE", "inherited": False}]},
    ]
}


def test_kinds_and_the_first_level_are_those_of_the_api() -> None:
    assert set(KINDS) == set(_KINDS)
    assert GrantFields().level in LEVELS


def test_a_grant_is_shown_granted_and_taken_away() -> None:
    assert [(each.principal, each.what, each.level) for each in grant_views(ANSWER)] == [
        ("sea", "group", "CAN_QUERY"),
        ("sea", "user", "CAN_MANAGE"),
    ]
    fields = [("kind", "group_name"), ("principal", "sea"), ("level", "CAN_VIEW")]
    one = {"group_name": "sea", "permission_level": "CAN_VIEW"}
    assert grant_body(form_of(fields)) == {"access_control_list": [one]}
    left = {"user_name": "sea", "permission_level": "CAN_MANAGE"}
    assert rest_body(ANSWER, form_of(fields)) == {"access_control_list": [left]}


def test_a_kind_that_no_form_has_is_refused() -> None:
    with pytest.raises(Problem):
        grant_body(form_of([("kind", "permission_level"), ("principal", "sea")]))
