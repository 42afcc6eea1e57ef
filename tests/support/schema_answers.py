"""Which JSON a schema's grammar takes, and answers that it gives, with the real parser."""

import json
import random
from functools import cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from serve_app.engine.grammar.constraint import LIMITS
from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from serve_app.json_schema import adapt
from tests.support.tiny_llama import tiny_tokenizer

_MAX_TOKENS = 400
_CLOSING_SHARE = 0.4


@cache
def tokens() -> LLTokenizer:
    backend = tiny_tokenizer().backend_tokenizer
    size = backend.get_vocab_size()
    return grammar_tokenizer(backend.to_str(), vocab_size=384, own_vocab_size=size, eos_token_ids=[2])


def matcher(schema: dict[str, Any]) -> LLMatcher:
    """The parser of the adapted schema, which must know every keyword that is left."""
    options = {"whitespace_flexible": False, "lenient": False}
    text = LLMatcher.grammar_from_json_schema(json.dumps(adapt(schema).schema), overrides=options)
    made = LLMatcher(tokens(), text, log_level=0, limits=LIMITS)
    assert not made.is_error(), made.get_error()
    return made


def accepts(schema: dict[str, Any], value: Any) -> bool:
    made = matcher(schema)
    ids = tokens().tokenize_str(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return bool(made.try_consume_tokens(ids) == len(ids) and made.is_accepting())


def walk(schema: dict[str, Any], rng: random.Random) -> Any | None:
    """A random answer, which prefers to close what it opened; None: it did not end in time."""
    made = matcher(schema)
    ids: list[int] = []
    while not made.is_stopped() and len(ids) < _MAX_TOKENS:
        allowed = np.flatnonzero(
            np.unpackbits(np.frombuffer(made.compute_bitmask(), np.uint8), bitorder="little")
        )
        closing = [i for i in allowed if tokens().decode_bytes([int(i)]) in (b'"', b"}", b"]")]
        choice = int(rng.choice(closing if closing and rng.random() < _CLOSING_SHARE else list(allowed)))
        made.consume_token(choice)
        ids.append(choice)
    if not made.is_stopped():
        return None
    text = tokens().decode_bytes(ids).decode().removesuffix("</s>").removesuffix("<|im_end|>")
    return json.loads(text)
