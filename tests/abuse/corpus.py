"""Bodies no honest client sends, as (name, bytes). All of them deserve a 400."""

from __future__ import annotations

import gzip
import json
from typing import Final

VALID: Final = b'{"model":"demo","prompt":"x","messages":[{"role":"user","content":"x"}]%s}'
SECRET: Final = "do-not-repeat-me"


def with_field(text: str | bytes) -> bytes:
    """A sound body for either route, and one more member."""
    return VALID % (b"," + (text if isinstance(text, bytes) else text.encode()))


def field(name: str, value: object) -> bytes:
    return with_field(f"{json.dumps(name)}:{json.dumps(value)}")


MALFORMED: Final[list[tuple[str, bytes]]] = [
    ("truncated", with_field('"n":1')[:-1]),
    ("empty", b""),
    ("blank", b" \n"),
    ("null", b"null"),
    ("array", b"[]"),
    ("string", f'"{SECRET}"'.encode()),
    ("number", b"1"),
    ("byte-order mark", b"\xef\xbb\xbf" + with_field('"n":1')),
    ("utf-16", with_field('"n":1').decode().encode("utf-16")),
    ("utf-32", with_field('"n":1').decode().encode("utf-32")),
    ("bad utf-8", with_field(b'"user":"\xc3\x28"')),
    ("overlong utf-8", with_field(b'"user":"\xc0\xaf"')),
    ("lone high surrogate", with_field(r'"user":"\ud800"')),
    ("lone low surrogate", with_field(r'"stop":["\udc00"]')),
    ("surrogate in a key", with_field(r'"\ud800":1')),
    ("raw control character", with_field(b'"user":"a\x00b"')),
    ("trailing nul", with_field('"n":1') + b"\x00"),
    ("two values", with_field('"n":1') * 2),
    ("comment", with_field('"n":1 /* x */')),
    ("single quotes", b"{'model':'demo'}"),
    ("trailing comma", with_field('"n":1,')),
    ("NaN", with_field('"temperature":NaN')),
    ("Infinity", with_field('"temperature":Infinity')),
    ("-Infinity", with_field('"temperature":-Infinity')),
    ("NaN in an unknown field", with_field('"x":[{"y":NaN}]')),
    ("overflow", with_field('"temperature":1e400')),
    ("overflow in an unknown field", with_field('"x":-1e400')),
    ("integer of 5000 digits", with_field('"max_tokens":' + "9" * 5_000)),
    ("integer of 5000 digits in an unknown field", with_field('"x":' + "9" * 5_000)),
    ("nested 100000 deep", with_field('"x":' + "[" * 100_000 + "]" * 100_000)),
    ("nested 100000 deep, never closed", with_field('"x":' + '{"a":' * 100_000)),
    ("nested 65 deep", with_field('"x":' + "[" * 65 + "]" * 65)),
    ("true for a number", field("top_k", True)),
    ("string for a number", field("temperature", "1")),
    ("fraction for an integer", field("top_k", 1.5)),
    ("number for a boolean", field("stream", 1)),
    ("string for a boolean", field("stream", "true")),
    ("number for a string", field("user", 5)),
    ("list for a string", field("model", [SECRET])),
    ("object for a list", field("stop", {"a": SECRET})),
    ("nul in the model name", field("model", SECRET + "\x00" * 300)),
    ("20 kB value", field("temperature", SECRET * 1_500)),
    ("20 kB key in logit_bias", field("logit_bias", {SECRET * 1_500: 1})),
    ("gzip bomb", gzip.compress(b" " * 2_000_000)),
    ("form", b"model=demo&prompt=x"),
    ("multipart", b"--x\r\ncontent-disposition: form-data\r\n\r\n"),
]

# Odd, but sound: these must not fail.
SOUND: Final[list[tuple[str, bytes]]] = [
    ("duplicate keys", with_field('"n":7,"n":1')),
    ("negative zero", with_field('"temperature":-0')),
    ("integer as 3.0", field("max_tokens", 3.0)),
    ("exponent", with_field('"max_tokens":3e0')),
    ("100000 unknown keys", with_field(",".join(f'"k{i}":0' for i in range(100_000)))),
    ("escaped nul in text", with_field(r'"user":"a\u0000b"')),
    ("nulls", with_field('"n":null,"stop":null,"stream":null,"user":null')),
]
