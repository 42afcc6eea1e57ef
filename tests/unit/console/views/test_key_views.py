from __future__ import annotations

from typing import Any

import pytest

from serve_app.console.views import keys
from tests.support.console_forms import form_of

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def key(**fields: Any) -> dict[str, Any]:
    return {
        "id": "9f2c",
        "name": "search",
        "prefix": "sk-abcde",
        "user": "search",
        "is_service_principal": False,
        "groups": ["sea", "land"],
        "scopes": ["manage", "inference"],
        "endpoints": [],
        "creator": "ada",
        "creation_time": NOW_MS - DAY_MS,
        "currency": "USD",
        "comment": "",
        **fields,
    }


@pytest.mark.parametrize(
    ("fields", "word", "is_in_force"),
    [
        ({}, "active", True),
        ({"expiry_time": NOW_MS + 30 * DAY_MS}, "active", True),
        ({"expiry_time": NOW_MS + DAY_MS}, "ends soon", True),
        ({"expiry_time": NOW_MS}, "expired", False),
        ({"expiry_time": NOW_MS + DAY_MS, "revocation_time": NOW_MS - 1}, "revoked", False),
    ],
)
def test_whether_a_key_is_in_force(fields: dict[str, Any], word: str, is_in_force: bool) -> None:
    view = keys.key_view(key(**fields), NOW_MS)
    assert (view.status.word, view.is_in_force) == (word, is_in_force)


def test_a_key_and_the_form_that_changes_it() -> None:
    view = keys.key_view(key(budget=200.0, endpoints=["talk"]), NOW_MS)
    assert view.scopes == ("inference", "manage"), "in one order always"
    assert view.reach == "talk"
    assert keys.key_view(key(), NOW_MS).reach == "every endpoint"
    fields = keys.fields_of(view)
    assert fields.text("groups") == "sea, land"
    assert (fields.text("budget"), fields.text("soft_budget")) == ("200", "")
    assert fields.endpoints == {"talk"}


def test_a_form_that_nobody_touched_changes_no_group_and_no_budget() -> None:
    groups = ["Sales, EMEA", 'the "A" team']
    view = keys.key_view(key(groups=groups, budget=0.00005, soft_budget=1e11), NOW_MS)
    body = keys.change_body(form_of(keys.fields_of(view).texts.items()))
    assert (body["groups"], body["budget"], body["soft_budget"]) == (groups, 0.00005, 100_000_000_000)


def test_keys_in_force_come_first() -> None:
    answer = {"keys": [key(name="b"), key(name="a", revocation_time=1), key(name="c")]}
    assert [each.name for each in keys.key_views(answer, NOW_MS)] == ["b", "c", "a"]


def test_the_body_that_makes_a_key() -> None:
    form = form_of(
        [
            ("name", "search"), ("user", ""), ("scopes", "inference"), ("scopes", "routing"),
            ("groups", "sea,land"), ("endpoints", "talk"), ("days", "90"), ("budget", "200"),
            ("soft_budget", ""), ("currency", "EUR"), ("comment", "for search"),
            ("is_service_principal", "on"),
        ]
    )  # fmt: skip
    assert keys.creation_body(form) == {
        "name": "search",
        "scopes": ["inference", "routing"],
        "groups": ["sea", "land"],
        "endpoints": ["talk"],
        "lifetime_seconds": 90 * 86_400,
        "budget": 200,
        "currency": "EUR",
        "comment": "for search",
        "is_service_principal": True,
    }
    kept = keys.fields_in(form)
    assert kept.scopes == {"inference", "routing"}
    assert kept.is_service_principal
    assert kept.text("days") == "90"


def test_a_number_that_is_none_is_left_to_the_api() -> None:
    body = keys.creation_body(form_of([("name", "a"), ("days", "soon"), ("budget", "much")]))
    assert (body["lifetime_seconds"], body["budget"]) == ("soon", "much")
    assert body["scopes"] == []


def test_a_change_takes_empty_budgets_away() -> None:
    form = form_of(
        [("scopes", "inference"), ("groups", ""), ("budget", ""), ("soft_budget", "50"), ("comment", "")]
    )
    assert keys.change_body(form) == {
        "scopes": ["inference"],
        "groups": [],
        "endpoints": [],
        "comment": "",
        "soft_budget": 50,
        "clear": ["budget"],
    }
    assert "clear" not in keys.change_body(form_of([("budget", "1"), ("soft_budget", "1")]))
