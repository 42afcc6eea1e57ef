"""Keys that were made at run time, as gateways check them: what is in force when, and strangers."""

import random
import statistics
import string
import time
from dataclasses import replace
from itertools import islice, product

import pytest

from serve_app.accounts.accounts import Accounts
from serve_app.accounts.bad_keys import MAX_ADDRESSES, MOST, WINDOW_S
from serve_app.accounts.keys import digest_of, new_key, new_secret
from serve_app.config import GatewayConfig
from serve_app.errors import PermissionDenied, QuotaExceeded, Unauthenticated, Unavailable
from serve_app.types import Scope
from serve_app.types.control import KnownKey, Snapshot

SECRET = new_secret()
KNOWN = KnownKey(
    digest=digest_of(SECRET),
    name="alice",
    user="alice@example.com",
    is_service_principal=False,
    groups=("lab",),
    scopes=("inference", "of-a-newer-version"),
    endpoints=("chat",),
)


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def snapshot(*keys, version=1):
    return Snapshot(version=version, keys=keys)


def accounts(keys="", *, clock=time.monotonic, now=time.time, at_run_time=True, **config):
    return Accounts(
        GatewayConfig(**config), {"SERVE_APP_API_KEYS": keys}, clock, now, at_run_time=at_run_time
    )


def caller_of(found, key=SECRET, peer="127.0.0.1"):
    return found.authenticate(f"Bearer {key}", peer)


def test_a_key_of_a_snapshot_is_its_caller():
    found = accounts()
    found.take(snapshot(KNOWN))
    caller = caller_of(found)
    assert (caller.key_id, caller.user, caller.groups) == ("alice", "alice@example.com", frozenset({"lab"}))
    assert caller.scopes == {Scope.INFERENCE}  # and nothing that this version does not know
    assert caller.endpoints == {"chat"}
    assert caller.at_run_time
    assert not caller.anonymous


def test_a_newer_snapshot_replaces_all_keys():
    found = accounts()
    found.take(snapshot(KNOWN))
    found.take(snapshot(replace(KNOWN, scopes=("metrics",), over_budget="spent"), version=2))
    assert (caller_of(found).scopes, caller_of(found).over_budget) == ({Scope.METRICS}, "spent")
    found.take(snapshot(version=3))
    with pytest.raises(Unauthenticated):
        caller_of(found)


def test_a_key_ends_by_the_clock_between_two_snapshots():
    clock = Clock()
    found = accounts(now=clock)
    found.take(snapshot(replace(KNOWN, expires=1_010.0)))
    assert caller_of(found).key_id == "alice"
    clock.now = 1_010.0
    with pytest.raises(Unauthenticated, match="expired"):
        caller_of(found)


def test_a_snapshot_that_nobody_confirms_is_not_believed_for_ever():
    """A gateway that is cut off cannot hear that a key was revoked."""
    key, line = new_key("operator")
    found, age = accounts(line, control={"max_snapshot_age_s": 60}), Clock()
    found.snapshot_age_s = age
    found.take(snapshot(KNOWN))
    age.now = 60.0
    assert caller_of(found).key_id == "alice"
    age.now = 60.1
    for secret in (SECRET, "sk-made-meanwhile"):  # neither is refused for good
        with pytest.raises(Unavailable, match="control plane") as caught:
            caller_of(found, secret)
        assert caught.value.retryable
    assert found.bad_keys == 0
    assert caller_of(found, key).key_id == "operator"  # the operator can still look
    age.now = 0.0
    assert caller_of(found).key_id == "alice"
    with pytest.raises(Unauthenticated):
        caller_of(found, "sk-unknown")


def test_nobody_is_a_stranger_before_the_first_snapshot():
    """The control plane is away: a key that it may know is not refused for good."""
    waiting = accounts()
    for peer in ("127.0.0.1", None):
        with pytest.raises(Unavailable) as caught:
            caller_of(waiting, peer=peer)
        assert caught.value.retryable
        with pytest.raises(Unavailable):
            waiting.authenticate(None, peer)
    assert waiting.bad_keys == 0
    waiting.take(snapshot())
    assert waiting.authenticate(None, "127.0.0.1").anonymous
    with pytest.raises(PermissionDenied):
        waiting.authenticate(None, None)


def test_keys_of_the_file_work_before_the_first_snapshot():
    key, line = new_key("operator")
    waiting = accounts(line)
    assert caller_of(waiting, key).key_id == "operator"
    with pytest.raises(Unavailable):
        caller_of(waiting)
    with pytest.raises(Unauthenticated):  # no key at all is known to be none
        waiting.authenticate(None, "127.0.0.1")
    waiting.take(snapshot(KNOWN))
    assert caller_of(waiting).key_id == "alice"
    assert caller_of(waiting, key).key_id == "operator"
    assert waiting.is_declared("operator")
    assert waiting.is_declared("anonymous")
    assert not waiting.is_declared("alice")


def test_without_a_control_plane_nothing_waits():
    assert accounts(at_run_time=False).authenticate(None, "127.0.0.1").anonymous


def test_once_there_was_a_key_everybody_needs_one():
    found = accounts()
    found.take(snapshot(KNOWN))
    found.take(snapshot(version=2))
    with pytest.raises(Unauthenticated):
        found.authenticate(None, "127.0.0.1")


def test_an_open_network_may_not_make_the_first_key():
    found = accounts(allow_remote_without_keys=True)
    found.take(snapshot())
    assert Scope.MANAGE not in found.authenticate(None, "10.0.0.1").scopes
    assert Scope.MANAGE not in found.authenticate(None, None).scopes
    assert Scope.MANAGE in found.authenticate(None, "127.0.0.1").scopes


def test_each_key_has_a_salt_of_its_own_also_with_the_same_user():
    other = new_secret()
    found = accounts()
    found.take(snapshot(KNOWN, replace(KNOWN, name="second", digest=digest_of(other))))
    assert caller_of(found).salt != caller_of(found, other).salt
    again = accounts()
    again.take(snapshot(KNOWN))
    assert again.authenticate(f"bearer {SECRET}", None).salt == caller_of(found).salt  # on every gateway


def test_bad_keys_are_counted_by_address_and_never_shut_out_a_good_one():
    clock = Clock()
    found = accounts(clock=clock)
    found.take(snapshot(KNOWN))
    for n in range(MOST):
        with pytest.raises(Unauthenticated):
            caller_of(found, f"sk-{n}", "10.0.0.1")
    with pytest.raises(QuotaExceeded) as caught:
        caller_of(found, "sk-more", "10.0.0.1")
    assert 0 < (caught.value.retry_after_s or 0) <= WINDOW_S
    with pytest.raises(Unauthenticated):
        caller_of(found, "sk-more", "10.0.0.2")
    assert caller_of(found, SECRET, "10.0.0.1").key_id == "alice"
    clock.now += WINDOW_S
    with pytest.raises(Unauthenticated):
        caller_of(found, "sk-more", "10.0.0.1")


def test_a_key_that_was_asked_with_before_it_was_known_was_no_bad_one():
    found = accounts(clock=Clock())
    found.take(snapshot(KNOWN))
    early = new_secret()
    for _ in range(MOST):
        with pytest.raises(Unauthenticated):
            caller_of(found, early, "10.0.0.1")
    found.take(snapshot(KNOWN, replace(KNOWN, name="early", digest=digest_of(early))))
    assert caller_of(found, early, "10.0.0.1").key_id == "early"
    for n in range(MOST):
        with pytest.raises(Unauthenticated):
            caller_of(found, f"sk-{n}", "10.0.0.1")
    assert found.bad_keys == MOST
    with pytest.raises(QuotaExceeded):
        caller_of(found, "sk-more", "10.0.0.1")


def test_a_hundred_thousand_bad_keys_leave_nothing_behind():
    found = accounts()
    found.take(snapshot(KNOWN))
    told = set()
    for n in range(100_000):
        with pytest.raises((Unauthenticated, QuotaExceeded)) as caught:
            caller_of(found, f"sk-{n}", f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
        told.add(caught.value.message)
    assert told == {"the API key is not valid"}
    assert found.bad_keys == 100_000
    assert len(found._bad) == MAX_ADDRESSES
    assert len(found._taken) == 1
    assert caller_of(found).key_id == "alice"


@pytest.mark.full
def test_time_tells_no_key_that_begins_right_from_a_random_one():
    """Both are hashed whole and looked up once. Compared by rank, as clocks have outliers."""
    found = accounts()
    found.take(snapshot(*(replace(KNOWN, name=f"k{n}", digest=digest_of(f"sk-{n}")) for n in range(1_000))))
    found.take(snapshot(KNOWN))

    def took(key):
        began = time.perf_counter_ns()
        with pytest.raises((Unauthenticated, QuotaExceeded)):
            caller_of(found, key)
        return time.perf_counter_ns() - began

    alphabet = string.ascii_letters + string.digits
    near = [SECRET[:-3] + "".join(each) for each in islice(product(alphabet, repeat=3), 10_000)]
    keys = [*near, *(new_secret() for _ in near)]
    random.Random(0).shuffle(keys)
    times = {key: took(key) for key in keys}
    order = sorted(keys, key=times.__getitem__)
    rank = statistics.mean(place for place, key in enumerate(order) if key[:-3] == SECRET[:-3])
    assert 0.45 < rank / len(order) < 0.55
