"""One reply or refusal as msgpack: its kind, and its value."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, TypeVar, get_args

import msgspec

from serve_app.channel.frames import Refused, encoder, refusal_decoder
from serve_app.errors import from_info

T = TypeVar("T")

_REFUSED: Final = "Refused"
_REPLY: Final = "Reply"

named: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def encode_reply(reply: object) -> bytes:
    """`reply` is the answer, or `Refused`."""
    return encoder.encode((_REFUSED if isinstance(reply, Refused) else _REPLY, reply))


def read_reply(data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The reply in `data`, as `decoder` reads it. Raises the ServeError of a refusal."""
    name, raw = named.decode(data)
    if name == _REFUSED:
        raise from_info(refusal_decoder.decode(raw).error)
    return decoder.decode(raw)


def reply_types(module: ModuleType, base: type) -> dict[type[Any], type[Any]]:
    """The concrete subclasses of `base` in `module`, each with the reply that it names: `base[Reply]`."""
    found = {}
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, base) and not getattr(kind, "__parameters__", ()):
            (found[kind],) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]
    return found
