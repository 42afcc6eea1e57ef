"""Static API keys: what is accepted, who is who, and what is never stored or shown."""

import base64
import hashlib

import pytest

from serve_app.accounts.accounts import Accounts
from serve_app.accounts.keys import KeyFileError, new_key
from serve_app.config import GatewayConfig
from serve_app.errors import PermissionDenied, Unauthenticated
from serve_app.loopback import is_loopback
from serve_app.types import Scope


def accounts(keys: str = "", **config: object) -> Accounts:
    return Accounts(GatewayConfig(**config), {"SERVE_APP_API_KEYS": keys})


def test_a_key_made_by_new_key_authenticates_under_its_name_and_scopes():
    key, line = new_key("alice", ["inference", "metrics"])
    caller = accounts(line).authenticate(f"Bearer {key}", "203.0.113.9")
    assert (caller.key_id, caller.scopes) == ("alice", frozenset({Scope.INFERENCE, Scope.METRICS}))


def test_the_line_holds_the_hash_and_not_the_key():
    key, line = new_key("alice")
    assert key.startswith("sk-")
    assert len(key) > 40
    assert key not in line
    assert line == f"alice:inference:{hashlib.sha256(key.encode()).hexdigest()}"


def test_file_and_environment_are_both_read(tmp_path):
    (key_a, line_a), (key_b, line_b) = new_key("a"), new_key("b")
    path = tmp_path / "keys"
    path.write_text(f"# operators\n\n{line_a}  # alice\n")
    both = accounts(line_b, keys_file=path)
    assert both.authenticate(f"Bearer {key_a}", None).key_id == "a"
    assert both.authenticate(f"Bearer {key_b}", None).key_id == "b"


def basic(user, password):
    """As curl sends `-u user:password`."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_a_key_may_be_the_password_of_the_user_token():
    key, line = new_key("a")
    served = accounts(line)
    assert served.authenticate(basic("token", key), None).key_id == "a"
    assert served.authenticate(basic("token", key).replace("Basic", "basic"), None).key_id == "a"
    for other in (basic("tokens", key), basic("", key), basic(key, ""), basic("token", f"{key}:")):
        with pytest.raises(Unauthenticated) as caught:
            served.authenticate(other, None)
        assert key not in caught.value.message


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer sk-wrong",
        "Basic c2s6",
        "Basic",
        "Basic ",
        "Basic \xff",
        "Basic sk-wrong",
        basic("token", "sk-wrong"),
        basic("token", ""),
        basic("token", "x" * 10_000),
        "sk-x",
        "Bearer " + "x" * 10_000,
        "Bearer \xff",
    ],
)
def test_anything_but_a_known_key_is_refused(header):
    _, line = new_key("a")
    with pytest.raises(Unauthenticated) as caught:
        accounts(line).authenticate(header, "127.0.0.1")
    assert "sk-wrong" not in caught.value.message


def test_without_keys_only_loopback_is_served():
    open_accounts = accounts()
    for peer in ("127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"):
        assert Scope.INFERENCE in open_accounts.authenticate(None, peer).scopes
    for stranger in ("10.0.0.1", "::ffff:10.0.0.1", "localhost", "", None, "127.0.0.1.example"):
        with pytest.raises(PermissionDenied):
            open_accounts.authenticate(None, stranger)


def test_a_closed_network_may_be_served_without_keys():
    assert accounts(allow_remote_without_keys=True).authenticate("Bearer any", "10.0.0.1").salt


def test_salts_differ_between_keys_and_are_stable_for_one():
    lines = [new_key(name)[1] for name in "ab"]
    keys = [new_key(name) for name in ("a", "b")]
    first, second = accounts(" ".join(line for _, line in keys)), accounts(" ".join(line for _, line in keys))
    salts = [first.authenticate(f"Bearer {key}", None).salt for key, _ in keys]
    assert len(set(salts)) == 2
    assert salts == [second.authenticate(f"Bearer {key}", None).salt for key, _ in keys]
    assert all(salt not in line for salt in salts for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        "alice",
        "alice:inference",
        "alice:inference:abc",
        "alice:root:" + "0" * 64,
        "a b:inference:" + "0" * 64,
        ":inference:" + "0" * 64,
    ],
)
def test_a_broken_line_stops_the_start_and_is_named_by_number_only(line, tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{new_key('ok')[1]}\n{line}\n")
    with pytest.raises(KeyFileError, match="line 2") as caught:
        accounts(keys_file=path)
    assert "0" * 64 not in str(caught.value)


def test_a_missing_or_empty_key_file_stops_the_start(tmp_path):
    with pytest.raises(OSError, match="none"):
        accounts(keys_file=tmp_path / "none")
    (tmp_path / "empty").write_text("# nobody yet\n")
    with pytest.raises(KeyFileError):
        accounts(keys_file=tmp_path / "empty")


def test_host_names_are_not_loopback_addresses():
    assert not is_loopback("localhost.")


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Changing:
    """Accounts over a file that is written while they are in use."""

    def __init__(self, path, *lines):
        self.path, self.clock = path, Clock()
        self.write(*lines)
        self.accounts = Accounts(GatewayConfig(keys_file=path), {}, self.clock)

    def write(self, *lines):
        other = self.path.with_suffix(".new")
        other.write_text("\n".join(lines))
        other.replace(self.path)  # as an editor and Kubernetes do

    def admits(self, key):
        self.clock.now += 1.0
        try:
            return self.accounts.authenticate(f"Bearer {key}", "127.0.0.1").key_id
        except Unauthenticated:
            return None


def test_a_changed_file_is_in_force_without_a_restart(tmp_path):
    (key_a, line_a), (key_b, line_b) = new_key("a"), new_key("b")
    keys = Changing(tmp_path / "keys", line_a)
    assert (keys.admits(key_a), keys.admits(key_b)) == ("a", None)
    keys.write(line_a, line_b)
    assert (keys.admits(key_a), keys.admits(key_b)) == ("a", "b")
    keys.write(line_b)
    assert (keys.admits(key_a), keys.admits(key_b)) == (None, "b")


def test_a_file_that_is_not_understood_changes_nothing_until_it_is_mended(tmp_path, caplog):
    (key_a, line_a), (key_b, line_b) = new_key("a"), new_key("b")
    keys = Changing(tmp_path / "keys", line_a)
    for breaks in (lambda: keys.write("nonsense"), keys.path.unlink, lambda: keys.path.write_bytes(b"\xff")):
        breaks()
        assert (keys.admits(key_a), keys.accounts.refused) == ("a", True)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the changed key file is not in force, the old keys are"
    ]
    keys.write(line_b)
    assert (keys.admits(key_a), keys.admits(key_b), keys.accounts.refused) == (None, "b", False)
    away = keys.path.rename(tmp_path / "away")
    assert (keys.admits(key_b), keys.accounts.refused) == ("b", True)
    away.rename(keys.path)
    assert (keys.admits(key_b), keys.accounts.refused) == ("b", False)


def test_a_file_without_any_key_shuts_everybody_out(tmp_path):
    key, line = new_key("a")
    keys = Changing(tmp_path / "keys", line)
    keys.write("# all are revoked")
    assert keys.admits(key) is None
    with pytest.raises(Unauthenticated):
        keys.accounts.authenticate(None, "127.0.0.1")


def test_the_environment_may_name_the_file(tmp_path):
    key, line = new_key("a")
    (tmp_path / "keys").write_text(line)
    named = Accounts(GatewayConfig(), {"SERVE_APP_API_KEYS_FILE": str(tmp_path / "keys")})
    assert named.authenticate(f"Bearer {key}", None).key_id == "a"
