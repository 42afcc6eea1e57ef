"""Questions to a model, commands to the control plane, and their replies as msgpack: a name and a value.

Like frames, they are decoded only into known types: those of `types.question` and `types.control`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, TypeVar, cast, get_args

import msgspec

from serve_app.channel.frames import Refused, encoder, refusal_decoder
from serve_app.channel.numbers import number_of
from serve_app.errors import from_info
from serve_app.types import Caller, control
from serve_app.types import question as questions
from serve_app.types.control import Command
from serve_app.types.question import Question

T = TypeVar("T")

_REFUSED: Final = "Refused"
_REPLY: Final = "Reply"


def _reply_types(module: ModuleType, base: type) -> dict[type[Any], type[Any]]:
    """The concrete subclasses of `base` in `module`, each with the type of its reply: `base[Reply]`."""
    found = {}
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, base) and not getattr(kind, "__parameters__", ()):
            (found[kind],) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]
    return found


# question or command -> its reply
QUESTIONS: Final = _reply_types(questions, Question)
COMMANDS: Final = _reply_types(control, Command)

_named: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_questions: Final = {kind.__name__: msgspec.msgpack.Decoder(kind, ext_hook=number_of) for kind in QUESTIONS}
_commands: Final = {
    kind.__name__: msgspec.msgpack.Decoder(tuple[kind, Caller])  # type: ignore[valid-type]
    for kind in COMMANDS
}
_replies: Final = {kind: msgspec.msgpack.Decoder(reply) for kind, reply in (QUESTIONS | COMMANDS).items()}


def encode_question(question: Question[Any]) -> bytes:
    return encoder.encode((type(question).__name__, question))


def decode_question(data: bytes) -> Question[Any]:
    """The question in `data`. Raises msgspec.ValidationError for an unknown name or a wrong type."""
    name, raw = _named.decode(data)
    if name not in _questions:
        raise msgspec.ValidationError("there is no such question")
    return cast("Question[Any]", _questions[name].decode(raw))


def encode_command(command: Command[Any], caller: Caller) -> bytes:
    return encoder.encode((type(command).__name__, (command, caller)))


def decode_command(data: bytes) -> tuple[Command[Any], Caller]:
    """The command in `data`, and its sender. Raises msgspec.ValidationError as `decode_question`."""
    name, raw = _named.decode(data)
    if name not in _commands:
        raise msgspec.ValidationError("there is no such command")
    return cast("tuple[Command[Any], Caller]", _commands[name].decode(raw))


def encode_reply(reply: object) -> bytes:
    """`reply` is the answer, or a `Refused`."""
    return encoder.encode((_REFUSED if isinstance(reply, Refused) else _REPLY, reply))


def decode_reply(asked: Question[T] | Command[T], data: bytes) -> T:
    """The reply to a question or command. Raises the ServeError that a refusal contains."""
    name, raw = _named.decode(data)
    if name == _REFUSED:
        raise from_info(refusal_decoder.decode(raw).error)
    return cast("T", _replies[type(asked)].decode(raw))
