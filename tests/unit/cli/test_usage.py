"""Usage, read from the files of real journals."""

import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.accounts.journal import Journal
from serve_app.config import default_usage_dir
from serve_app.types import UsageRecord

NOW = time.time()
DAY = 86_400.0


def record(id, *, ago=0.0, key="alice", endpoint="chat", outcome="finished", cost=None):
    return UsageRecord(
        id=id,
        key_id=key,
        endpoint=endpoint,
        entity=f"{endpoint}-1",
        kind="pay_per_token",
        route="/v1/chat/completions",
        started=NOW - ago,
        outcome=outcome,
        prompt_tokens=1_000,
        cached_tokens=100,
        completion_tokens=10,
        cost=cost,
        currency=None if cost is None else "USD",
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    journal = Journal(tmp_path / "usage")
    for each in (
        record("a", cost=0.25),
        record("b", cost=0.5),
        record("c", key="bob", outcome="aborted"),
        record("d", key="bob", endpoint="other", ago=10 * DAY),
    ):
        journal.opened(each)
        journal.closed(each)
    journal.opened(record("e", endpoint="other"))  # its gateway dies with it
    journal.close()
    return tmp_path / "usage"


def test_the_table_has_a_line_for_each_combination(invoke, folder):
    result = invoke("usage", "--dir", folder, "--by", "endpoint,key")
    assert result.exit_code == 0, result.output
    header, *lines = [line.split() for line in result.output.splitlines()]
    assert header == [
        *("ENDPOINT", "KEY", "REQUESTS", "FINISHED", "ABORTED", "LOST"),
        *("PROMPT_TOKENS", "CACHED_TOKENS", "COMPLETION_TOKENS", "COST_USD"),
    ]
    assert lines == [
        ["chat", "alice", "2", "2", "0", "0", "2,000", "200", "20", "0.75"],
        ["chat", "bob", "1", "0", "1", "0", "1,000", "100", "10"],
        ["other", "alice", "1", "0", "0", "1", "1,000", "100", "10"],
        ["other", "bob", "1", "1", "0", "0", "1,000", "100", "10"],
    ]


def test_answers_that_went_on_elsewhere_have_a_column(invoke, folder):
    journal = Journal(folder)
    journal.closed(replace(record("f", endpoint="other"), migrations=3))
    journal.close()
    header, _, other = (
        line.split() for line in invoke("usage", "--dir", folder, "--by", "endpoint").output.splitlines()
    )
    assert other[header.index("MIGRATIONS")] == "3"


def test_json_has_all_there_is_to_know(invoke, folder):
    result = invoke("usage", "--dir", folder, "--by", "key", "--format", "json")
    alice, bob = json.loads(result.stdout)
    assert alice == {
        "key": "alice",
        "requests": {"finished": 2, "lost": 1},
        "prompt_tokens": 3_000,
        "cached_tokens": 300,
        "completion_tokens": 30,
        "migrations": 0,
        "cost": {"USD": 0.75},
    }
    assert (bob["key"], bob["cost"]) == ("bob", {})


def test_csv_is_for_spreadsheets(invoke, folder):
    result = invoke("usage", "--dir", folder, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["endpoint"], row["entity"], row["requests"]) for row in rows] == [
        ("chat", "chat-1", "3"),
        ("other", "other-1", "2"),
    ]
    assert [row["cost_USD"] for row in rows] == ["0.75", ""]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], "abcde"),
        (["--since", "7d"], "abce"),
        (["--until", "7d"], "d"),
        (["--since", "2w", "--until", "36h"], "d"),
        (["--since", time.strftime("%Y-%m-%d", time.localtime(NOW - 2 * DAY))], "abce"),
        (["--until", time.strftime("%Y-%m-%dT%H:%M+00:00", time.gmtime(NOW - DAY))], "d"),
    ],
)
def test_times_choose_records_by_when_they_began(invoke, folder, options, ids):
    result = invoke("usage", "--dir", folder, "--records", *options)
    assert sorted(json.loads(line)["id"] for line in result.stdout.splitlines()) == list(ids)


def test_records_are_json_lines_of_all_fields(invoke, folder):
    lines = invoke("usage", "--dir", folder, "--records").stdout.splitlines()
    assert set(map(str, json.loads(lines[0]))) == set(UsageRecord.__slots__)


def test_no_requests_are_said_and_no_error(invoke, folder):
    result = invoke("usage", "--dir", folder, "--until", "30d")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no requests" in result.stderr


@pytest.mark.parametrize(
    ("options", "hint"),
    [(["--by", "moon"], "endpoint, entity, key, kind"), (["--since", "soon"], "7d"), (["--until", ""], "7d")],
)
def test_what_is_not_understood_is_refused_with_what_would_be(invoke, folder, options, hint):
    result = invoke("usage", "--dir", folder, *options)
    assert result.exit_code == 2
    assert options[0] in result.stderr
    assert hint in result.stderr


def test_a_journal_that_is_not_there_is_named(invoke, tmp_path):
    result = invoke("usage", "--dir", tmp_path / "none")
    assert result.exit_code == 1
    assert str(tmp_path / "none") in result.stderr
    assert "usage_dir" in result.stderr


def test_the_usual_place_is_that_of_the_gateway(invoke, folder, monkeypatch):
    state = folder.parent
    (state / "serve-app").mkdir()
    folder.rename(state / "serve-app" / "usage")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert len(invoke("usage", "--records").stdout.splitlines()) == 5
    assert default_usage_dir() == state / "serve-app" / "usage"
    assert default_usage_dir({"HOME": "x"}) == Path.home() / ".local/state/serve-app/usage"
