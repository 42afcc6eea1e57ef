"""Keys in the database: who may make them, what is kept of them, and that nobody is locked out."""

import sqlite3
from dataclasses import replace

import pytest
from sqlalchemy import text

from serve_app.accounts.keys import digest_of
from serve_app.control.keys.keys import Keys
from serve_app.control.ledger.ledger import Ledger
from serve_app.errors import AlreadyExists, Conflict, InvalidField, ModelNotFound, PermissionDenied
from serve_app.types import Caller, Scope
from serve_app.types.control import CreateKey, ListKeys, RevokeKey, RotateKey, ShipUsage, UpdateKey
from tests.unit.control.ledger.test_reports import RECORD

OPERATOR = Caller(key_id="operator", scopes=frozenset(Scope), salt="")
NOBODY = replace(OPERATOR, key_id="anonymous", anonymous=True)
AT_RUN_TIME = replace(OPERATOR, key_id="admin", at_run_time=True)
MANAGE = ("inference", "manage")


class Case:
    """A database in a file, its keys, and a clock that the test sets."""

    def __init__(self, database):
        self.time = 1_000.0
        self.changes = 0
        self.database = database
        self.keys = Keys(database, self.changed, lambda: self.time)
        self.handlers = self.keys.handlers()

    def changed(self):
        self.changes += 1

    async def do(self, command, caller=OPERATOR):
        return await self.handlers[type(command)](command, caller)

    async def in_force(self):
        return await self.database.run(self.keys.in_force)

    async def names(self, **options):
        return [key.name for key in (await self.do(ListKeys(**options))).keys]


@pytest.fixture
def case(database):
    return Case(database)


@pytest.fixture
def each_case(each_database):
    """As `case`, once on each kind of database."""
    return Case(each_database)


async def test_a_new_key_is_told_once_and_known_by_its_digest(each_case):
    made = await each_case.do(CreateKey(name="alice", groups=("b", "a"), endpoints=("chat",), lifetime_s=60))
    assert made.secret.startswith("sk-")
    assert made.shown.prefix == made.secret[:8]
    assert (made.shown.user, made.shown.groups) == ("alice", ("a", "b"))
    (known,) = await each_case.in_force()
    assert known.digest == digest_of(made.secret)
    assert (known.endpoints, known.expires) == (("chat",), 1_060.0)
    assert each_case.changes == 1


async def test_neither_the_database_nor_any_text_has_the_key(case, tmp_path):
    made = await case.do(CreateKey(name="alice", comment="hers"))
    rest = made.secret[8:]
    listed = await case.do(ListKeys())
    for shown in (repr(made), repr(listed), repr(await case.in_force()), str(made)):
        assert rest not in shown
    dump = "\n".join(sqlite3.connect(tmp_path / "control.db").iterdump())
    assert "alice" in dump
    assert rest not in dump
    assert rest[:6] not in dump
    assert digest_of(made.secret).hex().upper() in dump.upper()
    files = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
    assert rest.encode() not in files


async def test_a_name_is_taken_as_long_as_its_key_is_in_force(each_case):
    first = await each_case.do(CreateKey(name="alice", lifetime_s=10))
    with pytest.raises(AlreadyExists):
        await each_case.do(CreateKey(name="alice"))
    each_case.time += 10
    second = await each_case.do(CreateKey(name="alice"))
    await each_case.do(RevokeKey(id="alice"))
    third = await each_case.do(CreateKey(name="alice"))
    assert len({first.shown.id, second.shown.id, third.shown.id}) == 3
    assert [key.id for key in (await each_case.do(ListKeys())).keys] == [third.shown.id]
    assert len((await each_case.do(ListKeys(everything=True))).keys) == 3


async def test_a_key_ends_by_time_or_by_hand_and_cannot_come_back(each_case):
    await each_case.do(CreateKey(name="short", lifetime_s=1))
    made = await each_case.do(CreateKey(name="long"))
    each_case.time += 1
    assert await each_case.names() == ["long"]
    await each_case.do(RevokeKey(id=made.shown.id))
    assert await each_case.in_force() == ()
    for command in (RevokeKey(id=made.shown.id), UpdateKey(id="long", comment="x"), RevokeKey(id="none")):
        with pytest.raises(ModelNotFound):
            await each_case.do(command)


async def test_a_rotated_key_keeps_all_but_its_secret(each_case):
    made = await each_case.do(CreateKey(name="alice", scopes=MANAGE, groups=("a",), budget=10))
    each_case.time += 100
    new = await each_case.do(RotateKey(id="alice"))
    assert new.shown == replace(made.shown, prefix=new.secret[:8], created=1_100.0)
    (known,) = await each_case.in_force()
    assert known.digest == digest_of(new.secret) != digest_of(made.secret)
    with pytest.raises(ModelNotFound):
        await each_case.do(RotateKey(id="none"))


async def test_a_former_secret_is_taken_until_its_grace_is_over(each_case):
    made = await each_case.do(CreateKey(name="alice", lifetime_s=1_000))
    each_case.time += 1
    new = await each_case.do(RotateKey(id=made.shown.id, grace_s=60))
    former, current = (await each_case.do(ListKeys())).keys
    assert (former.prefix, former.expires) == (made.shown.prefix, 1_061.0)
    assert (current.id, current.expires) == (made.shown.id, 2_000.0)
    assert {each.digest for each in await each_case.in_force()} == {
        digest_of(made.secret),
        digest_of(new.secret),
    }
    # Its name means the new secret, and what ends that ends both.
    assert (await each_case.do(UpdateKey(id="alice", comment="x"))).prefix == new.secret[:8]
    each_case.time += 60
    assert [each.digest for each in await each_case.in_force()] == [digest_of(new.secret)]
    await each_case.do(RotateKey(id="alice", grace_s=10_000))
    (former, _) = (await each_case.do(ListKeys())).keys
    assert former.expires == 2_000.0, "no later than the key itself"
    await each_case.do(RevokeKey(id="alice"))
    assert await each_case.in_force() == ()


async def test_a_former_secret_may_end_by_itself(each_case):
    await each_case.do(CreateKey(name="alice"))
    each_case.time += 1
    new = await each_case.do(RotateKey(id="alice", grace_s=60))
    former, _ = (await each_case.do(ListKeys())).keys
    with pytest.raises(Conflict, match="former secret of the key alice"):
        await each_case.do(RotateKey(id=former.id))
    await each_case.do(RevokeKey(id=former.id))
    assert [each.digest for each in await each_case.in_force()] == [digest_of(new.secret)]


async def test_a_list_tells_the_last_use_and_what_was_spent(each_case):
    ledger = Ledger(each_case.database)
    for name in ("alice", "bob"):
        await each_case.do(CreateKey(name=name))
    sent = [(990.0, "alice"), (1_010.0, "alice"), (1_020.0, "alice"), (1_030.0, "other")]
    ended = tuple(
        replace(RECORD, id=f"r{at}", key_id=name, started=at, cost=0.25, currency="USD") for at, name in sent
    )
    await ledger.handlers()[ShipUsage](ShipUsage(ended=ended), OPERATOR)
    alice, bob = (await each_case.do(ListKeys())).keys
    assert (alice.last_used, alice.spent) == (1_020.0, 0.75)
    assert (bob.last_used, bob.spent) == (None, 0.0), "nor that of an older key of its name"


async def test_an_update_changes_what_it_names_alone(each_case):
    made = await each_case.do(CreateKey(name="alice", budget=10, soft_budget=5, groups=("a",)))
    changed = await each_case.do(UpdateKey(id="alice", scopes=MANAGE, budget=20))
    assert changed == replace(made.shown, scopes=MANAGE, budget=20)
    cleared = await each_case.do(UpdateKey(id="alice", clear=("budget", "soft_budget")))
    assert (cleared.budget, cleared.soft_budget) == (None, None)
    with pytest.raises(InvalidField, match="soft_budget"):
        await each_case.do(UpdateKey(id="alice", budget=1, soft_budget=2))
    assert (await each_case.do(ListKeys())).keys == (replace(cleared, spent=0.0),)


@pytest.mark.parametrize(
    "caller",
    [
        replace(OPERATOR, scopes=frozenset(Scope) - {Scope.MANAGE}),
        replace(OPERATOR, endpoints=frozenset({"chat"})),  # could make itself a key without the limit
    ],
)
async def test_only_keys_that_manage_everything_manage_keys(case, caller):
    commands = (CreateKey(name="x"), UpdateKey(id="x"), ListKeys(), RevokeKey(id="x"), RotateKey(id="x"))
    for command in commands:
        with pytest.raises(PermissionDenied):
            await case.do(command, caller)
    assert case.changes == 0


async def test_the_first_key_of_a_server_without_keys_must_manage(case):
    for useless in (
        CreateKey(name="a"),
        CreateKey(name="a", scopes=MANAGE, lifetime_s=60),
        CreateKey(name="a", scopes=MANAGE, endpoints=("chat",)),
    ):
        with pytest.raises(Conflict, match="first key must"):
            await case.do(useless, NOBODY)
    assert await case.names(everything=True) == []
    await case.do(CreateKey(name="admin", scopes=MANAGE), NOBODY)
    await case.do(CreateKey(name="a"), AT_RUN_TIME)
    assert await case.names() == ["a", "admin"]


async def test_the_last_key_that_manages_stays_unless_the_key_file_has_one(each_case):
    await each_case.do(CreateKey(name="admin", scopes=MANAGE), NOBODY)
    await each_case.do(CreateKey(name="other", scopes=MANAGE, lifetime_s=60), AT_RUN_TIME)
    for command in (
        RevokeKey(id="admin"),
        UpdateKey(id="admin", scopes=("inference",)),
        UpdateKey(id="admin", endpoints=("chat",)),
    ):
        with pytest.raises(Conflict, match="last key"):
            await each_case.do(command, AT_RUN_TIME)
    assert [key.scopes for key in (await each_case.do(ListKeys())).keys] == [MANAGE, MANAGE]
    await each_case.do(RevokeKey(id="admin"), OPERATOR)  # whose key is in the key file
    assert await each_case.names() == ["other"]


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "a b"}),
        ("name", {"name": "x" * 65}),
        ("name", {"name": "anonymous"}),
        ("user", {"user": "x\ny"}),
        ("user", {"user": " x"}),
        ("user", {"user": "x" * 257}),
        ("groups", {"groups": ("",)}),
        ("groups", {"groups": tuple(map(str, range(101)))}),
        ("scopes", {"scopes": ()}),
        ("scopes", {"scopes": ("root",)}),
        ("endpoints", {"endpoints": ("\x00",)}),
        ("lifetime_seconds", {"lifetime_s": 0}),
        ("lifetime_seconds", {"lifetime_s": float("nan")}),
        ("lifetime_seconds", {"lifetime_s": 1e12}),
        ("budget", {"budget": -1}),
        ("budget", {"budget": float("inf")}),
        ("soft_budget", {"budget": 1, "soft_budget": 2}),
        ("currency", {"currency": "dollars"}),
        ("comment", {"comment": "x" * 1025}),
        ("comment", {"comment": "\0"}),
    ],
)
async def test_a_bad_field_is_named(case, field, fields):
    with pytest.raises(InvalidField) as caught:
        await case.do(CreateKey(**({"name": "x"} | fields)))
    assert caught.value.param == field
    assert await case.database.run(lambda s: s.execute(text("SELECT count(*) FROM api_key")).scalar()) == 0
