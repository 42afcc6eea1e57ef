"""Commands and replies as bytes: each command that there is can be sent and answered, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from serve_app.channel.calls import COMMANDS, decode_command, decode_reply, encode_command, encode_reply
from serve_app.channel.frames import Refused, encoder
from serve_app.errors import Conflict
from serve_app.types import Caller, Scope, control
from serve_app.types.control import (
    Change,
    Command,
    ConfigWanted,
    CreateEndpoint,
    Done,
    EntityWanted,
    GetEndpoint,
    KnownKey,
    Snapshot,
    WatchSnapshot,
)

CALLER = Caller(key_id="ops", scopes=frozenset({Scope.MANAGE}), salt="s", groups=frozenset({"a"}))


def test_every_command_has_a_reply() -> None:
    public = vars(control).values()
    commands = {each for each in public if isinstance(each, type) and issubclass(each, Command)}
    assert commands - {Command, Change} == set(COMMANDS)


def test_a_command_arrives_with_its_caller() -> None:
    entity = EntityWanted(entity_name="demo-chat", provisioned_model_units=2, stored={"a": [1, None]})
    config = ConfigWanted(entities=(entity,), traffic={"demo-chat": 100})
    command = CreateEndpoint(name="mine", config=config, is_provisioned=True, tags={"b": ""})
    assert decode_command(encode_command(command, CALLER)) == (command, CALLER)


def test_a_snapshot_arrives_whole() -> None:
    key = KnownKey(
        digest=bytes(range(32)),
        name="k",
        user="u",
        is_service_principal=True,
        groups=("g",),
        scopes=("inference",),
        endpoints=("mine",),
        expires=1.5,
    )
    snapshot = Snapshot(version=2**40, endpoints={"mine": b'{"name": "mine"}'}, keys=(key,))
    report = control.GatewayReport(gateway="g", declared={}, in_force=1, waiting={"mine": ("rt-a",)})
    watch = WatchSnapshot(report=report, after=1, wait_s=2.5)
    assert decode_command(encode_command(watch, CALLER)) == (watch, CALLER)
    assert decode_reply(watch, encode_reply(snapshot)) == snapshot


def test_a_refusal_is_raised() -> None:
    with pytest.raises(Conflict, match="busy"):
        decode_reply(GetEndpoint(name="mine"), encode_reply(Refused(Conflict("busy").info())))


def test_what_is_no_command_is_refused() -> None:
    for data in (
        b"",
        encoder.encode(("Nothing", ({}, CALLER))),
        encoder.encode(("GetEndpoint", ({"name": 1}, CALLER))),
        encoder.encode(("Done", (Done(), CALLER))),
    ):
        with pytest.raises(msgspec.DecodeError):
            decode_command(data)
