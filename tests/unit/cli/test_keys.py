"""Keys made on the command line."""

import pytest

from serve_app.accounts.accounts import Accounts
from serve_app.config import GatewayConfig
from serve_app.types import Scope


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
