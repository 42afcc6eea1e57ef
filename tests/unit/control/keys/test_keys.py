"""Keys in the database: who may make them, what is kept of them, and that nobody is locked out."""

import sqlite3
from dataclasses import replace

import pytest
from sqlalchemy import text

from serve_app.accounts.keys import digest_of
from serve_app.control.keys.keys import Keys
from serve_app.errors import AlreadyExists, Conflict, InvalidField, ModelNotFound, PermissionDenied
from serve_app.types import Caller, Scope
from serve_app.types.control import CreateKey, ListKeys, RevokeKey, UpdateKey

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


async def test_an_update_changes_what_it_names_alone(each_case):
    made = await each_case.do(CreateKey(name="alice", budget=10, soft_budget=5, groups=("a",)))
    changed = await each_case.do(UpdateKey(id="alice", scopes=MANAGE, budget=20))
    assert changed == replace(made.shown, scopes=MANAGE, budget=20)
    cleared = await each_case.do(UpdateKey(id="alice", clear=("budget", "soft_budget")))
    assert (cleared.budget, cleared.soft_budget) == (None, None)
    with pytest.raises(InvalidField, match="soft_budget"):
        await each_case.do(UpdateKey(id="alice", budget=1, soft_budget=2))
    assert (await each_case.do(ListKeys())).keys == (cleared,)


@pytest.mark.parametrize(
    "caller",
    [
        replace(OPERATOR, scopes=frozenset(Scope) - {Scope.MANAGE}),
        replace(OPERATOR, endpoints=frozenset({"chat"})),  # could make itself a key without the limit
    ],
)
async def test_only_keys_that_manage_everything_manage_keys(case, caller):
    for command in (CreateKey(name="x"), UpdateKey(id="x"), ListKeys(), RevokeKey(id="x")):
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
