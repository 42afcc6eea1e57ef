"""Questions and their replies as msgpack: the name of a type, and a value of that type.

They are decoded into the types of `types.question` and nothing else, as frames are.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from serve_app.channel.frames import encoder
from serve_app.channel.numbers import number_of
from serve_app.channel.replies import named, read_reply, reply_types
from serve_app.types import question as questions
from serve_app.types.question import Question, ReplyT

# question -> its reply
REPLIES: Final[dict[type[Question[Any]], type]] = reply_types(questions, Question)

_questions: Final = {kind.__name__: msgspec.msgpack.Decoder(kind, ext_hook=number_of) for kind in REPLIES}
_replies: Final[dict[type[Question[Any]], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(reply) for kind, reply in REPLIES.items()
}


def encode_question(question: Question[Any]) -> bytes:
    return encoder.encode((type(question).__name__, question))


def decode_question(data: bytes) -> Question[Any]:
    """The question in `data`. Raises msgspec.ValidationError for an unknown name or a wrong type."""
    name, raw = named.decode(data)
    if name not in _questions:
        raise msgspec.ValidationError("there is no such question")
    return cast("Question[Any]", _questions[name].decode(raw))


def decode_reply(question: Question[ReplyT], data: bytes) -> ReplyT:
    """The reply to `question`. Raises the ServeError of a refusal."""
    return cast("ReplyT", read_reply(data, _replies[type(question)]))
