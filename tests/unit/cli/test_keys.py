"""Keys made on the command line: for the key file, and on a running server."""

import json

import pytest

from serve_app.accounts.accounts import Accounts
from serve_app.accounts.keys import new_key
from serve_app.cli.server import Server
from serve_app.config import GatewayConfig
from serve_app.types import Scope
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app
from tests.support.run_time_keys import KeyPlane


@pytest.mark.parametrize("scopes", [["inference"], ["metrics"], ["inference", "metrics", "routing"]])
def test_the_key_works_with_the_line_beside_it(invoke, scopes):
    words = invoke("keys", "new", "carol", "--scopes", ",".join(scopes)).output.split()
    key = next(word for word in words if word.startswith("sk-"))
    line = next(word for word in words if word.startswith("carol:"))
    accounts = Accounts(GatewayConfig(), {"SERVE_APP_API_KEYS": line})
    caller = accounts.authenticate(f"Bearer {key}", None)
    assert (caller.key_id, caller.scopes) == ("carol", frozenset(map(Scope, scopes)))


def test_without_scopes_a_key_may_only_infer(invoke):
    assert "carol:inference:" in invoke("keys", "new", "carol").output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["carol", "--scopes", "root"], "inference, metrics, routing"),
        (["carol", "--scopes", ""], "--scopes"),
        (["car ol"], "NAME"),
        (["x" * 65], "64"),
    ],
)
def test_a_bad_name_or_scope_is_refused_by_name(invoke, arguments, hint):
    result = invoke("keys", "new", *arguments)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert result.stdout == ""


def test_a_key_lives_on_a_server_from_create_to_revoke(invoke, serve, database):
    key, line = new_key("operator", ["inference", "manage"])
    plane = KeyPlane(database)
    app = fake_app(FakeBackend(), line, management=plane, at_run_time=True)
    plane.gateways.append(app.state.services)
    url = serve(app)

    def run(*words):
        return invoke("keys", *words, "--url", url, "--key", key)

    made = run("create", "carol", "--groups", "lab,search", "--budget", "5", "--days", "1")
    assert made.exit_code == 0, made.stderr
    secret = made.stdout.strip()
    assert secret.startswith("sk-")
    (shown,) = json.loads(run("list", "--format", "json").stdout)
    assert (shown["groups"], shown["budget"]) == (["lab", "search"], 5.0)
    assert shown["expiry_time"] - shown["creation_time"] == 86_400_000
    assert run("update", "carol", "--endpoints", "demo", "--clear", "budget").exit_code == 0
    table = run("list").stdout
    assert secret[:8] in table
    assert secret not in table
    assert "demo" in table
    assert run("update", "carol").exit_code == 2
    assert run("revoke", "carol").exit_code == 0
    assert run("list").stdout == ""
    assert "carol (revoked)" in run("list", "--all").stdout
    again = run("revoke", "carol")
    assert again.exit_code == 1
    assert "no key in force" in again.stderr


def test_a_list_without_the_ledger_says_so_and_claims_nothing(invoke, monkeypatch):
    key = {"id": "k1", "name": "alice", "prefix": "sk-aaaaa", "user": "alice", "scopes": ["inference"]}
    answer = {"keys": [key], "declared_keys": [], "notice": "the database does not answer"}
    monkeypatch.setattr(Server, "read", lambda server, path: answer)
    listed = invoke("keys", "list")
    assert listed.exit_code == 0
    assert "the database does not answer" in listed.stderr
    assert listed.stdout.split()[-2:] == ["never", "unknown"]
    assert listed.stdout.count("unknown") == 2
