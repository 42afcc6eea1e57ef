"""Guided decoding: the pair `guided_decoding_guide_type` and `guided_decoding_guide` -> a grammar."""

from __future__ import annotations

from typing import Any, Final

from serve_app import limits
from serve_app.api.dialects.chat.response_format.grammar import FIELDS as PARSERS
from serve_app.api.dialects.chat.response_format.grammar import Form
from serve_app.api.dialects.triton.request.row import BatchRow
from serve_app.errors import InvalidField
from serve_app.json_schema import SPACE, UnusableSchema, adapt
from serve_app.json_schema.exact import expression
from serve_app.json_schema.numerals import loads
from serve_app.types import Grammar, GrammarKind, MarkerRule

TYPE: Final = "guided_decoding_guide_type"
GUIDE: Final = "guided_decoding_guide"

# Type of guide -> the field of other protocols whose parser reads the same text.
_READ_AS: Final = {"json_schema": "guided_json", "regex": "guided_regex", "ebnf_grammar": "guided_grammar"}
_TAG: Final = "structural_tag"
_TYPES: Final = ("json", *_READ_AS, _TAG)
_MAX_TAGS: Final = 128  # as many as tools of a chat, which tags usually are


def read_guide(row: BatchRow) -> Form:
    """The grammar that the answer must match. Raises InvalidField."""
    kind, guide = row.text(TYPE), row.text(GUIDE)
    if kind is None:
        if guide is not None:
            raise row.refused(TYPE, f"is required with {GUIDE}")
        return Form()
    if kind not in _TYPES:
        raise row.refused(TYPE, f"must be one of: {', '.join(_TYPES)}")
    if kind == "json":
        return Form(Grammar(kind=GrammarKind.JSON))
    if guide is None:
        raise row.refused(GUIDE, f"is required with the type {kind}")
    return _structural_tag(guide) if kind == _TAG else PARSERS[_READ_AS[kind]](guide, GUIDE)


def _structural_tag(guide: str) -> Form:
    """Free text in which, after any of the triggers, one of the structures must follow.

    If a structure begins or ends with the name of a token, the model may write the name or the token.
    """
    if len(guide) > limits.MAX_GRAMMAR_CHARS:
        raise _wrong_tag()
    try:
        body = loads(guide)
        form = _tags(body["structures"], body["triggers"])
    except UnusableSchema as error:
        raise InvalidField(GUIDE, f"a schema cannot be used: {error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _wrong_tag() from None
    if form.grammar is None or len(form.grammar.text) > limits.MAX_GRAMMAR_CHARS:
        raise _wrong_tag()
    return form


def _tags(structures: list[dict[str, Any]], triggers: list[str]) -> Form:
    """Raises ValueError, or Python's own errors for a malformed value."""
    if not 1 <= len(structures) <= _MAX_TAGS or not all(type(t) is str and t for t in triggers):
        raise ValueError
    rules, markers, lost = [], [], []
    for i, each in enumerate(structures):
        begin, end, schema = each["begin"], each["end"], each["schema"]
        trigger = next((t for t in triggers if begin.startswith(t)), None)
        if trigger is None or type(end) is not str or type(schema) is not dict:
            raise ValueError
        adapted = adapt(schema)
        lost += [f"{GUIDE}.structures.{i}.schema.{keyword}" for keyword in adapted.lost]
        rules.append(f"tag_{i}: begin_{i} {expression(adapted.schema, SPACE)} end_{i}")
        markers += [MarkerRule(f"begin_{i}", begin, opens=len(trigger)), MarkerRule(f"end_{i}", end)]
    tags = " | ".join(f"tag_{i}" for i in range(len(structures)))
    text = "\n".join(["%llguidance {}", f"start: ({tags})* TEXT", "TEXT: /(.|\\n)*/", *rules])
    return Form(Grammar(kind=GrammarKind.LARK, text=text, markers=tuple(markers)), tuple(lost))


def _wrong_tag() -> InvalidField:
    return InvalidField(
        GUIDE,
        'must be {"structures": [{"begin", "schema", "end"}], "triggers": [...]}, of 1 to '
        f"{_MAX_TAGS} structures that begin with a trigger, as JSON of up to {limits.MAX_GRAMMAR_CHARS} "
        "characters",
    )
