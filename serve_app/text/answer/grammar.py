"""The format that a client requests for the output -> a grammar in llguidance's own notation.

Checks everything that can be checked without compiling: size, references, form.
Each protocol checks its own `strict`.
Refers to tokens only by name, and does not check the parser's limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from serve_app.errors import InvalidField
from serve_app.json_schema import COMPACT, SPACE, UnusableSchema, adapt, exact, narrowed, place
from serve_app.json_schema.numerals import loads
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import Grammar, GrammarKind, MarkerRule

FIELD: Final = "response_format"  # the replica's name for it; each dialect has its own
ANY_TEXT: Final = r"/(.|\n)*/"  # matches no control token

_COMPARED: Final = 4_096  # tokens; a few are enough to show a wrong alphabet or a wrong space
_NO_CONTROLS: Final[Mapping[str, int]] = MappingProxyType({})
# Comments, strings and regular expressions of Lark's notation, in which a name is text; and names of tokens.
_NAMES: Final = re.compile(
    r'(?://|#)[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\])+/|<(?P<name>[^<>\s\[][^<>\s]*)>'
)


def serialise(
    grammar: Grammar, controls: Mapping[str, int] = _NO_CONTROLS, ends: Collection[int] = ()
) -> str:
    """`grammar` for llguidance. Raises an InvalidField that says what to change.

    `controls` are the model's control tokens by name. `ends` are the control tokens that end an answer; they
    are never written in place of their names. `json_schema.adapt` names the keywords that cannot be
    enforced, and the dialects report them to clients.
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
            texts = "\n".join(rule.text for rule in grammar.markers)
            markers = {name: i for name, i in controls.items() if name in texts and i not in ends}
            rules = [_marker_rule(rule, markers) for rule in grammar.markers]
            return LLMatcher.grammar_from_lark("\n".join([_lark(grammar.text, controls), *rules]))


def reads_alike(tokenizer: Tokenizer, tokens: LLTokenizer) -> bool:
    """Whether the parser's text for tokens equals that seen by clients; checked on some thousand tokens."""
    size = tokenizer.vocab_size
    return all(
        tokens.decode_bytes([i]) == tokenizer.token_bytes(i)
        for i in range(0, size, max(1, size // _COMPARED))
        if i not in tokenizer.special_ids and not tokens.is_special_token(i)
    )


def fault(grammar: Grammar, refusal: Callable[[str], str | None]) -> str | None:
    """The part of a schema that the parser refuses, and its place; None if unknown.

    `refusal` says why the parser refuses a grammar written in its own notation.
    """
    if grammar.kind is not GrammarKind.SCHEMA:
        return None

    def of(schema: dict[str, Any]) -> str | None:
        return refusal(LLMatcher.grammar_from_json_schema(exact.with_options(schema, COMPACT)))

    found = narrowed(adapt(_read(grammar.text)), of)
    return None if found is None else f"{place(found[0])}: {found[1]}"


@contextmanager
def _usable() -> Iterator[None]:
    """Raises InvalidField for a schema that cannot be used."""
    try:
        yield
    except UnusableSchema as error:
        raise refused(f"the schema cannot be used: {error}") from error


@_usable()
def _of_schema(grammar: Grammar) -> str:
    schema, space = _schema(grammar)
    lark = exact.lark(schema, space)
    if lark is not None:
        return LLMatcher.grammar_from_lark(lark)
    return LLMatcher.grammar_from_json_schema(exact.with_options(schema, space))


@_usable()
def form_of(grammar: Grammar) -> str:
    """A JSON grammar as part of a larger grammar in Lark's notation. Raises InvalidField."""
    return exact.expression(*_schema(grammar))


@_usable()
def form_of_schema(schema: Mapping[str, Any], space: str) -> str:
    """A schema as part of a grammar in Lark's notation. Raises InvalidField."""
    return exact.expression(adapt(dict(schema)).schema, space)


def _schema(grammar: Grammar) -> tuple[dict[str, Any], str]:
    """The adapted schema of a grammar of JSON, and what is allowed between tokens. Raises UnusableSchema."""
    schema = {"type": "object"} if grammar.kind is GrammarKind.JSON else _read(grammar.text)
    return adapt(schema).schema, SPACE if grammar.space is None else grammar.space


def _read(text: str) -> dict[str, Any]:
    schema = loads(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise refused("the schema must be an object; `false` allows no answer")
    return schema


def _lark(text: str, controls: Mapping[str, int]) -> str:
    """A client's grammar, translated if it is GBNF, with the numbers of the tokens that it names."""
    try:
        translated = str(any_to_lark(text))
    except Exception as error:  # the translator raises bare Exception
        raise refused("the grammar is neither in Lark's notation nor in GBNF") from error

    def numbered(found: re.Match[str]) -> str:
        if found["name"] is None:
            return found[0]
        if found[0] not in controls:
            raise refused(f"the model has no control token {found[0]}")
        return f"<[{controls[found[0]]}]>"

    return _NAMES.sub(numbered, translated)


def _marker_rule(rule: MarkerRule, markers: Mapping[str, int]) -> str:
    """A rule, with the rules that it needs, for a text in which control tokens may stand for their names."""
    longest_first = sorted(markers, key=len, reverse=True)
    names = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def terms(text: str) -> str:
        parts = [part for part in re.split(f"({names.pattern})", text) if part]
        either = [f"({json.dumps(p)} | <[{markers[p]}]>)" if p in markers else json.dumps(p) for p in parts]
        return " ".join(either or ['""'])

    if not rule.opens:
        return f"{rule.name}: {terms(rule.text)}"
    ways = [f"{rule.name}_text {terms(rule.text[rule.opens :])}"]
    rules = [f"{rule.name}_text[lazy]: TEXT {json.dumps(rule.text[: rule.opens])}"]
    token = names.search(rule.text)
    if token is not None and token.start() < rule.opens:
        before = f"{rule.name}_before".upper()
        ways.append(f"{before} <[{markers[token[0]]}]> {terms(rule.text[token.end() :])}")
        rules.append(f"{before}: TEXT {json.dumps(rule.text[: token.start()])}")
    return "\n".join([f"{rule.name}: {' | '.join(ways)}", *rules])


def terms(text: str, token_ids: Mapping[str, int]) -> str:
    """`text` in the notation: markers become tokens, and everything else becomes literals."""
    pattern = "|".join(map(re.escape, token_ids))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    return " ".join(f"<[{token_ids[p]}]>" if p in token_ids else json.dumps(p) for p in parts if p)


def refused(reason: str) -> InvalidField:
    """The error for a grammar that cannot be used."""
    return InvalidField(FIELD, reason)
