"""Totals of usage records."""

from __future__ import annotations

import pytest

from serve_app.cli.usage import Total, summarise
from serve_app.types import UsageRecord


def record(
    endpoint: str = "chat", entity: str = "a", outcome: str = "finished", **fields: object
) -> UsageRecord:
    return UsageRecord(
        id="x",
        key_id="alice",
        endpoint=endpoint,
        entity=entity,
        kind="pay_per_token",
        route="/v1/chat/completions",
        started=0.0,
        outcome=outcome,
        **fields,  # type: ignore[arg-type]
    )


def test_requests_tokens_and_costs_add_up_in_groups() -> None:
    records = [
        record(prompt_tokens=10, cached_tokens=4, completion_tokens=3, cost=0.5, currency="USD"),
        record(entity="b", completion_tokens=7, migrations=1),
        record(entity="b", migrations=2),
        record(prompt_tokens=5, outcome="aborted", cost=0.25, currency="EUR"),
        record(prompt_tokens=1, outcome="lost", cost=0.25, currency="USD"),
        record(prompt_tokens=100, shadow=True),
    ]
    assert summarise(records) == [
        Total(
            ("chat", "a"),
            requests={"finished": 1, "aborted": 1, "lost": 1},
            prompt_tokens=16,
            cached_tokens=4,
            completion_tokens=3,
            cost={"USD": 0.75, "EUR": 0.25},
        ),
        Total(("chat", "b"), requests={"finished": 2}, completion_tokens=7, migrations=3),
    ]


def test_groups_are_by_any_fields_or_none() -> None:
    records = [record(), record(entity="b"), record(endpoint="other")]
    assert [(t.group, t.requests) for t in summarise(records, by=("key", "endpoint"))] == [
        (("alice", "chat"), {"finished": 2}),
        (("alice", "other"), {"finished": 1}),
    ]
    assert [t.group for t in summarise(records, by=())] == [()]
    assert summarise([]) == []


def test_days_and_months_are_those_of_utc_and_a_request_counts_in_each_group_of_its_user() -> None:
    records = [record(groups=("sea", "staff")), record(user="ada")]
    assert [t.group for t in summarise(records, by=("month", "day", "group", "user"))] == [
        ("1970-01", "1970-01-01", "", "ada"),
        ("1970-01", "1970-01-01", "sea", ""),
        ("1970-01", "1970-01-01", "staff", ""),
    ]


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'started'.*endpoint, entity"):
        summarise([], by=("endpoint", "started"))
