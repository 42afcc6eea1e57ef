"""What a client asks the output to match -> a grammar in llguidance's own notation.

Everything is checked that can be told without compiling: size, references, form.
What a schema may hold under a protocol's `strict` is that protocol's business.
Knows neither tokens nor the parser's limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from serve_app.errors import InvalidField
from serve_app.json_schema import SPACE, UnusableSchema, adapt, exact
from serve_app.json_schema.numerals import loads
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import Grammar, GrammarKind

FIELD: Final = "response_format"  # as the replica calls it; a dialect has its own name for it

_COMPARED: Final = 4_096  # tokens; a wrong idea of the alphabet or the space shows in any few


def serialise(grammar: Grammar) -> str:
    """`grammar` for llguidance. Raises InvalidField, which says what to change.

    What a schema loses on the way is named by `json_schema.adapt`, which the dialects tell clients.
    """
    match grammar.kind:
        case GrammarKind.JSON | GrammarKind.SCHEMA:
            return _of_schema(grammar)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.CHOICE:
            choices = json.loads(grammar.text)
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, choices)))
        case GrammarKind.LARK:
            return _lark(grammar.text)


def reads_alike(tokenizer: Tokenizer, tokens: LLTokenizer) -> bool:
    """Whether the parser takes the tokens for the text that a client will see, judged by some thousands."""
    size = tokenizer.vocab_size
    return all(
        tokens.decode_bytes([i]) == tokenizer.token_bytes(i)
        for i in range(0, size, max(1, size // _COMPARED))
        if i not in tokenizer.special_ids and not tokens.is_special_token(i)
    )


def _of_schema(grammar: Grammar) -> str:
    schema, space = _schema(grammar)
    try:
        lark = exact.lark(schema, space)
        if lark is not None:
            return LLMatcher.grammar_from_lark(lark)
        return LLMatcher.grammar_from_json_schema(exact.with_options(schema, space))
    except UnusableSchema as error:
        raise _unusable(error) from error


def form_of(grammar: Grammar) -> str:
    """A grammar of JSON as a part of a larger one, in Lark's notation. Raises InvalidField."""
    schema, space = _schema(grammar)
    return _expression(schema, space)


def form_of_schema(schema: Mapping[str, Any], space: str) -> str:
    """A schema as a part of a grammar in Lark's notation. Raises InvalidField."""
    return _expression(_adapted(schema), space)


def _expression(schema: dict[str, Any], space: str) -> str:
    try:
        return exact.expression(schema, space)
    except UnusableSchema as error:
        raise _unusable(error) from error


def _schema(grammar: Grammar) -> tuple[dict[str, Any], str]:
    """The adapted schema of a grammar of JSON, and what may stand between tokens."""
    schema = {"type": "object"} if grammar.kind is GrammarKind.JSON else _read(grammar.text)
    return _adapted(schema), SPACE if grammar.space is None else grammar.space


def _adapted(schema: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return adapt(dict(schema)).schema
    except UnusableSchema as error:
        raise _unusable(error) from error


def _unusable(error: UnusableSchema) -> InvalidField:
    return refused(f"the schema cannot be used: {error}")


def _read(text: str) -> dict[str, Any]:
    schema = loads(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise refused("the schema must be an object; `false` allows no answer")
    return schema


def _lark(text: str) -> str:
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(text))  # GBNF is translated
    except Exception as error:  # the translator raises bare Exception
        raise refused("the grammar is neither in Lark's notation nor in GBNF") from error


def refused(reason: str) -> InvalidField:
    """The error of a grammar that cannot be used."""
    return InvalidField(FIELD, reason)
