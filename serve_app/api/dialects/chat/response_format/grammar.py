"""The form of the output, as the fields of an OpenAI body define it.

`response_format` is OpenAI's field; with `guided_*` and `structured_outputs`, vLLM has the same forms and
more. At most one of these fields may constrain an answer. The replica decides whether a schema, a regex or a
grammar can be used. Keywords of a schema that are not enforced are found here, before the answer begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from serve_app import limits
from serve_app.api.dialects.chat.response_format.strict_schema import lost_keywords
from serve_app.api.dialects.chat.response_format.whitespace import parse_whitespace
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.json_schema.numerals import dumps, loads
from serve_app.types import Grammar, GrammarKind

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_JSON: Final = (GrammarKind.JSON, GrammarKind.SCHEMA)
WHITESPACE: Final = "guided_whitespace_pattern"


@dataclass(frozen=True, slots=True)
class Form:
    """The form of an answer, and the parts of the client's field that have no effect here."""

    grammar: Grammar | None = None
    ignored: tuple[str, ...] = ()  # such as `response_format.json_schema.schema.properties.a.uniqueItems`


def parse_form(body: Mapping[str, Any], *, subset: bool = False) -> Form:
    """The form that a field of the body asks for. `subset`: strict schemas must be in OpenAI's subset.

    Raises InvalidField for a wrong form or two forms; raises UnsupportedField for an unsupported kind.
    """
    found: list[tuple[Form, str]] = []
    for field, parse in FIELDS.items():
        value = body.get(field)
        form = Form() if value is None else parse(value, field, subset=subset)
        if form.grammar is not None:
            found.append((form, field))
    if len(found) > 1:
        raise InvalidField(found[1][1], f"must not be given beside {found[0][1]}")
    return _with_whitespace(found[0][0] if found else Form(), body.get(WHITESPACE), WHITESPACE)


def _with_whitespace(form: Form, pattern: Any, field: str, at: str = "") -> Form:
    """`form` with the client's own whitespace between the tokens of JSON."""
    if pattern is None:
        return form
    space = parse_whitespace(pattern, field, at)
    if form.grammar is None or form.grammar.kind not in _JSON:
        return replace(form, ignored=(*form.ignored, f"{field}.{at}" if at else field))
    return replace(form, grammar=replace(form.grammar, space=space))


def _response_format(value: Any, field: str, at: str = "", *, subset: bool = False) -> Form:
    if not isinstance(value, dict):
        raise InvalidField(field, "must be an object")
    kind, form = value.get("type"), value.get("json_schema")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidField(field, "type must be text, json_object or json_schema")
    if (form is None) == (kind == "json_schema"):
        raise InvalidField(field, "json_schema must be given when, and only when, type is json_schema")
    if kind == "text":
        return Form()
    if kind == "json_object":
        return Form(Grammar(kind=GrammarKind.JSON))
    if not isinstance(form, dict):
        raise InvalidField(field, "json_schema must be an object")
    return parse_named_schema(form, field, "json_schema.", subset=subset)


def parse_named_schema(form: Mapping[str, Any], field: str, at: str = "", *, subset: bool) -> Form:
    """The form of a schema with a name; `at`: the place of its members in the field. Raises InvalidField."""
    name, strict = form.get("name"), form.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidField(field, f"{at}name must be 1 to 64 letters, digits, underscores or dashes")
    if not isinstance(form.get("description", ""), str | None):
        raise InvalidField(field, f"{at}description must be a string")
    if not isinstance(strict, bool | None):
        raise InvalidField(field, f"{at}strict must be true or false")
    if not isinstance(form.get("schema"), dict):
        raise InvalidField(field, f"{at}schema must be an object")
    return parse_schema(form["schema"], field, f"{at}schema", strict=bool(strict), subset=subset)


def parse_schema(value: Any, field: str, at: str = "", *, strict: bool = False, subset: bool = False) -> Form:
    """The form of a schema, given as an object or as JSON text; `at`: its place in the field.

    Raises InvalidField.
    """
    if isinstance(value, str):
        try:
            value = loads(value) if len(value) <= limits.MAX_SCHEMA_BYTES else None
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise InvalidField(
            field,
            "must be a JSON Schema, as an object or as a string of up to "
            f"{limits.MAX_SCHEMA_BYTES} characters",
        )
    try:
        # The order of properties is kept: it is the order of the answer.
        text = dumps(value)
    except ValueError as error:
        raise InvalidField(field, "numbers in a schema must be finite") from error
    if len(text.encode("utf-8", "surrogatepass")) > limits.MAX_SCHEMA_BYTES:
        raise InvalidField(field, f"a schema must not exceed {limits.MAX_SCHEMA_BYTES} bytes")
    lost = lost_keywords(value, field, strict=strict, subset=subset)
    place = f"{field}.{at}" if at else field
    return Form(Grammar(kind=GrammarKind.SCHEMA, text=text), tuple(f"{place}.{keyword}" for keyword in lost))


def _text(kind: GrammarKind, limit: int) -> Parser:
    def parse(value: Any, field: str, at: str = "", *, subset: bool = False) -> Form:
        if not isinstance(value, str) or not 1 <= len(value) <= limit:
            raise InvalidField(field, f"must be a string of 1 to {limit} characters")
        return Form(Grammar(kind=kind, text=value))

    return parse


def _choice(value: Any, field: str, at: str = "", *, subset: bool = False) -> Form:
    count, chars = limits.MAX_GRAMMAR_CHOICES, limits.MAX_GRAMMAR_CHARS
    if not isinstance(value, list) or not 1 <= len(value) <= count:
        raise InvalidField(field, f"must be a list of 1 to {count} strings")
    if not all(isinstance(item, str) and item for item in value) or sum(map(len, value)) > chars:
        raise InvalidField(field, f"must hold strings that are not empty, of {chars} characters together")
    return Form(Grammar(kind=GrammarKind.CHOICE, text=json.dumps(value)))


def _structured_outputs(value: Any, field: str, at: str = "", *, subset: bool = False) -> Form:
    """vLLM's container: one of its members defines the form that the output must match."""
    if not isinstance(value, dict):
        raise InvalidField(field, "must be an object")
    given = {key: item for key, item in value.items() if item not in (None, False)}
    compact, pattern = given.pop("disable_any_whitespace", None), given.pop("whitespace_pattern", None)
    for key in _DEFAULTS:
        given.pop(key, None)
    for key in given:
        if key != "json_object" and key not in _KINDS:
            raise UnsupportedField(field, "only json, json_object, regex, choice and grammar are available")
    if len(given) > 1:
        raise InvalidField(field, "must hold one of json, json_object, regex, choice and grammar")
    if compact is not None and (compact is not True or pattern is not None):
        raise InvalidField(
            field, "disable_any_whitespace must be true or false, and not with whitespace_pattern"
        )
    form = Form()
    for key, item in given.items():
        is_any = key == "json_object"
        form = Form(Grammar(kind=GrammarKind.JSON)) if is_any else _KINDS[key](item, field, key)
    if compact:
        return _with_whitespace(form, "", field, "disable_any_whitespace")
    return _with_whitespace(form, pattern, field, "whitespace_pattern")


class Parser(Protocol):
    """Reads the value of a field, or of the field's member `at`. Raises InvalidField or UnsupportedField."""

    def __call__(self, value: Any, field: str, at: str = "", /, *, subset: bool = False) -> Form: ...


# Members of `structured_outputs` that request the server's normal behaviour.
_DEFAULTS: Final = ("disable_additional_properties", "disable_fallback")

_KINDS: Final[dict[str, Parser]] = {
    "json": parse_schema,
    "regex": _text(GrammarKind.REGEX, limits.MAX_REGEX_CHARS),
    "choice": _choice,
    "grammar": _text(GrammarKind.LARK, limits.MAX_GRAMMAR_CHARS),
}

# Every field that can constrain an answer, and how it is read.
FIELDS: Final[dict[str, Parser]] = {
    "response_format": _response_format,
    **{f"guided_{name}": parse for name, parse in _KINDS.items()},
    "structured_outputs": _structured_outputs,
}
