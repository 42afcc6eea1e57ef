"""Commands to the control plane and their replies as msgpack: the name of a type, and a value of that type.

They are decoded into the types of `types.control` and nothing else, as questions are.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from serve_app.channel.frames import encoder
from serve_app.channel.replies import named, read_reply, reply_types
from serve_app.types import Caller, control
from serve_app.types.control import Command, ReplyT

# command -> its reply
REPLIES: Final[dict[type[Command[Any]], type]] = reply_types(control, Command)

_commands: Final = {
    kind.__name__: msgspec.msgpack.Decoder(tuple[kind, Caller])  # type: ignore[valid-type]
    for kind in REPLIES
}
_replies: Final[dict[type[Command[Any]], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(reply) for kind, reply in REPLIES.items()
}


def encode_command(command: Command[Any], caller: Caller) -> bytes:
    return encoder.encode((type(command).__name__, (command, caller)))


def decode_command(data: bytes) -> tuple[Command[Any], Caller]:
    """The command in `data`, and who sent it. Raises msgspec.ValidationError for anything else."""
    name, raw = named.decode(data)
    if name not in _commands:
        raise msgspec.ValidationError("there is no such command")
    return cast("tuple[Command[Any], Caller]", _commands[name].decode(raw))


def decode_reply(command: Command[ReplyT], data: bytes) -> ReplyT:
    """The reply to `command`. Raises the ServeError of a refusal."""
    return cast("ReplyT", read_reply(data, _replies[type(command)]))
