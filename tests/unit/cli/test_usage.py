"""Usage, read from the files of real journals."""

import asyncio
import csv
import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from serve_app.accounts.journal import Journal
from serve_app.accounts.journal_reader import read
from serve_app.config import default_usage_dir
from serve_app.types import Caller, Scope, UsageRecord
from serve_app.types.control import ShipUsage
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app
from tests.support.ledger import LedgerPlane

NOW = time.time()
DAY = 86_400.0
MANAGER = Caller(key_id="root", scopes=frozenset({Scope.MANAGE}), salt="")


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


@pytest.fixture
def ledger_url(serve, database, folder):
    """A server whose ledger has what is in the journals of `folder`."""
    plane = LedgerPlane(database)
    records = list(read(folder))
    lost = tuple(each for each in records if each.outcome == "lost")
    ended = tuple(each for each in records if each.outcome != "lost")
    asyncio.run(plane.do(ShipUsage(ended=ended, lost=lost), MANAGER))
    return serve(fake_app(FakeBackend(), management=plane))


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_servers_ledger_says_the_same_as_the_journals(invoke, folder, ledger_url, form):
    options = ["--by", "key,endpoint,month", "--since", "30d", "--format", form]
    asked = invoke("usage", "--url", ledger_url, *options)
    assert asked.exit_code == 0, asked.output
    assert asked.stdout
    assert asked.stdout == invoke("usage", "--dir", folder, *options).stdout


def test_a_server_that_refuses_is_quoted(invoke, ledger_url, serve):
    off = invoke("usage", "--url", serve(fake_app(FakeBackend())))
    assert off.exit_code == 1
    assert "control.enabled" in off.stderr


@pytest.mark.parametrize("options", [["--records"], ["--dir", "somewhere"]])
def test_journals_and_a_server_are_not_asked_together(invoke, options):
    result = invoke("usage", "--url", "http://127.0.0.1:1", *options)
    assert result.exit_code == 2
    assert "--dir and --records read journals" in result.stderr


def test_no_requests_are_said_and_no_error(invoke, folder):
    result = invoke("usage", "--dir", folder, "--until", "30d")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no requests" in result.stderr


@pytest.mark.parametrize(
    ("options", "hint"),
    [(["--by", "moon"], "endpoint, entity, key, user"), (["--since", "soon"], "7d"), (["--until", ""], "7d")],
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
    assert default_usage_dir({"XDG_STATE_HOME": "/a", "SERVE_APP_USAGE_DIR": "/b"}) == Path("/b")
    assert default_usage_dir({"HOME": "x"}) == Path.home() / ".local/state/serve-app/usage"
