"""`response_format` of OpenVINO Model Server: OpenAI's forms, and besides them XGrammar's formats.

A format is a small tree (`sequence`, `or`, `tag`, ...) of texts, regexes, schemas and grammars; here
it becomes one grammar in Lark's notation. Free text (`any_text`, and the text between triggered tags) must be
the last part of its tag or of the answer, since its end cannot be recognised elsewhere. If a tag
begins or ends with the name of one of the model's tokens, the model may write the token or its name.

    {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": {...}},
                                      {"type": "const_string", "value": "Bye!"}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from serve_app import limits
from serve_app.api.dialects.chat.response_format.grammar import Form, parse_form
from serve_app.api.protocol.fields import Open, words
from serve_app.errors import InvalidField
from serve_app.json_schema import SPACE, UnusableSchema, adapt
from serve_app.json_schema.exact import expression
from serve_app.types import Grammar, GrammarKind, MarkerRule

FIELD: Final = "response_format"
STRUCTURAL: Final = "structural_tag"
OPENAIS: Final = ("text", "json_object", "json_schema")
MAX_DEPTH: Final = 16
MAX_PARTS: Final = 256  # formats in one tree

_NAME: Final = "answer"  # of a schema whose client gave it none
_HEAD: Final = ("%llguidance {}", "TEXT: /(.|\\n)*/")


def parse_response_format(value: Any) -> Form:
    """The form that an answer must match. Raises InvalidField, which names the place in the format."""
    if not isinstance(value, dict) or value.get("type") in OPENAIS:
        return parse_form({FIELD: _with_name(value)})
    if value.get("type") == STRUCTURAL:
        value = value.get("format")
    translator = _Translator()
    start = translator.format(value, "", last=True)
    text = "\n".join([*_HEAD, f"start: {start or _quoted('')}", *translator.rules, ""])
    if len(text) + sum(len(rule.text) for rule in translator.markers) > limits.MAX_GRAMMAR_CHARS:
        raise _wrong("", f"must not exceed {limits.MAX_GRAMMAR_CHARS} characters as a grammar")
    grammar = Grammar(kind=GrammarKind.LARK, text=text, markers=tuple(translator.markers))
    return Form(grammar, tuple(translator.lost))


def _with_name(value: Any) -> Any:
    """The form with its schema as OpenAI writes it: with a name, and the schema in the member `schema`."""
    form = _schema(value) if isinstance(value, dict) else None
    if not isinstance(form, dict) or value.get("type") != "json_schema":
        return value
    inner = form if isinstance(form.get("schema"), dict) else {"schema": form}
    return {**value, "json_schema": {**inner, "name": inner.get("name") or _NAME}}


def _schema(value: dict[str, Any]) -> Any:
    """The `json_schema` of a form or a format, in which True means any JSON."""
    schema = value.get("json_schema")
    return {} if schema is True else schema


class _Translator:
    """Turns formats into expressions, and collects their rules and the keywords that are not enforced."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self.markers: list[MarkerRule] = []
        self.lost: list[str] = []
        self._count = 0

    def format(self, value: Any, at: str, *, last: bool) -> str:
        """The expression of a format; `at`: its place; `last`: whether the answer ends with this format."""
        self._count += 1
        if at.count(".") > 2 * MAX_DEPTH or self._count > MAX_PARTS:
            raise _wrong("", f"must hold at most {MAX_PARTS} formats, at most {MAX_DEPTH} inside one another")
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in _READERS:
            raise _wrong(_join(at, "type"), f"must be one of: {', '.join([*OPENAIS, *_READERS])}")
        return _READERS[kind](self, value, at, last)

    def _rule(self, body: str) -> str:
        name = f"f{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _marker(self, text: str, opens: int = 0) -> str:
        name = f"m{len(self.markers)}"
        self.markers.append(MarkerRule(name, text, opens))
        return name

    def _constant(self, value: dict[str, Any], at: str, last: bool) -> str:
        return _quoted(_text(value, "value", at, empty=True))

    def _any_text(self, value: dict[str, Any], at: str, last: bool) -> str:
        if not last:
            raise _wrong(at, "any_text must be the end of the answer, or all of a tag's content")
        return "TEXT"

    def _regex(self, value: dict[str, Any], at: str, last: bool) -> str:
        return f"/{regex_to_lark(_text(value, 'pattern', at))}/"

    def _grammar(self, value: dict[str, Any], at: str, last: bool) -> str:
        text = _text(value, "grammar", at)
        try:
            return self._rule(f"%lark {{\n{any_to_lark(text)}\n}}")  # GBNF is translated
        except Exception as error:  # the translator raises bare Exception
            raise _wrong(_join(at, "grammar"), "must be in Lark's notation or in GBNF") from error

    def _json_schema(self, value: dict[str, Any], at: str, last: bool) -> str:
        place = _join(at, "json_schema")
        schema = _schema(value)
        if not isinstance(schema, dict):
            raise _wrong(place, "must be a JSON Schema")
        try:
            adapted = adapt(schema)
            form = expression(adapted.schema, SPACE)
        except UnusableSchema as error:
            raise _wrong(place, f"the schema cannot be used: {error}") from error
        self.lost += [f"{_join(FIELD, place)}.{keyword}" for keyword in adapted.lost]
        return self._rule(form)

    def _sequence(self, value: dict[str, Any], at: str, last: bool) -> str:
        elements = _list(value, "elements", at)
        end = len(elements) - 1
        parts = [
            self.format(each, _join(at, f"elements.{i}"), last=last and i == end)
            for i, each in enumerate(elements)
        ]
        return f"({' '.join(parts)})"

    def _or(self, value: dict[str, Any], at: str, last: bool) -> str:
        parts = [
            self.format(each, _join(at, f"elements.{i}"), last=last)
            for i, each in enumerate(_list(value, "elements", at))
        ]
        return f"({' | '.join(parts)})"

    def _tag(self, value: Any, at: str) -> str:
        begin, inside = self._parts_of(value, at)
        return f"({self._marker(begin)} {inside})"

    def _parts_of(self, value: Any, at: str) -> tuple[str, str]:
        """The text that a tag begins with, and the expression of the rest of the tag."""
        if not isinstance(value, dict) or value.get("type", "tag") != "tag":
            raise _wrong(at, "must be a tag")
        begin, end = _text(value, "begin", at), _text(value, "end", at, empty=True)
        content = value.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            return begin, self._marker(end, opens=len(end))
        return begin, f"{self.format(content, _join(at, 'content'), last=False)} {self._marker(end)}"

    def _triggered_tags(self, value: dict[str, Any], at: str, last: bool) -> str:
        """Free text. After a trigger, the text must be one of the tags that begin with that trigger."""
        if not last:
            raise _wrong(at, "triggered_tags must be the end of the answer")
        triggers, tags = _list(value, "triggers", at), _list(value, "tags", at)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise _wrong(_join(at, "triggers"), "must be a list of strings that are not empty")
        triggered: list[str] = []
        whole: list[str] = []
        for i, tag in enumerate(tags):
            place = _join(at, f"tags.{i}")
            begin = tag.get("begin") if isinstance(tag, dict) else None
            trigger = next((t for t in triggers if isinstance(begin, str) and begin.startswith(t)), None)
            if trigger is None:
                raise _wrong(_join(place, "begin"), "must begin with one of the triggers")
            begin, inside = self._parts_of(tag, place)
            triggered.append(f"({self._marker(begin, opens=len(trigger))} {inside})")
            whole.append(f"({self._marker(begin)} {inside})")
        any_tag = " | ".join(triggered)
        rest = "TEXT" if _flag(value, "stop_after_first", at) else f"({any_tag})* TEXT"
        if _flag(value, "at_least_one", at):  # then with nothing before it
            first = f"({' | '.join(whole)})"
            return first if rest == "TEXT" else f"({first} {rest})"
        return f"(({any_tag}) | TEXT)" if rest == "TEXT" else f"({rest})"

    def _tags_with_separator(self, value: dict[str, Any], at: str, last: bool) -> str:
        tags = [self._tag(tag, _join(at, f"tags.{i}")) for i, tag in enumerate(_list(value, "tags", at))]
        any_tag = self._rule(" | ".join(tags))
        separator = _text(value, "separator", at, empty=True)
        more = "" if _flag(value, "stop_after_first", at) else f" ({self._marker(separator)} {any_tag})*"
        return f"({any_tag}{more}){'' if _flag(value, 'at_least_one', at) else '?'}"


_READERS: Final[Mapping[str, Callable[[_Translator, dict[str, Any], str, bool], str]]] = {
    "const_string": _Translator._constant,
    "any_text": _Translator._any_text,
    "regex": _Translator._regex,
    "grammar": _Translator._grammar,
    "json_schema": _Translator._json_schema,
    "sequence": _Translator._sequence,
    "or": _Translator._or,
    "tag": lambda translator, value, at, last: translator._tag(value, at),
    "triggered_tags": _Translator._triggered_tags,
    "tags_with_separator": _Translator._tags_with_separator,
}


class ResponseFormat(Open):
    """One of OpenAI's forms, or one of XGrammar's formats, whose other members depend on its type."""

    type: Annotated[str, words((*OPENAIS, STRUCTURAL, *_READERS))]


def _quoted(text: str) -> str:
    return json.dumps(text)


def _text(value: dict[str, Any], name: str, at: str, *, empty: bool = False) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not (text or empty) or len(text) > limits.MAX_GRAMMAR_CHARS:
        least = "" if empty else ", not empty,"
        raise _wrong(
            _join(at, name), f"must be a string{least} of up to {limits.MAX_GRAMMAR_CHARS} characters"
        )
    return text


def _list(value: dict[str, Any], name: str, at: str) -> list[Any]:
    items = value.get(name)
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_PARTS:
        raise _wrong(_join(at, name), f"must be a list of 1 to {MAX_PARTS}")
    return items


def _flag(value: dict[str, Any], name: str, at: str) -> bool:
    flag = value.get(name, False)
    if not isinstance(flag, bool):
        raise _wrong(_join(at, name), "must be true or false")
    return flag


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _wrong(at: str, what: str) -> InvalidField:
    place = re.sub(r"[^\w.]", "", at)
    return InvalidField(FIELD, f"{_join(FIELD, place) if place else FIELD}: {what}", joint=None)
