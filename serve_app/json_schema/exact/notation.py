"""A schema as a grammar in the parser's other notation (Lark), in which numbers are regexes.

Only the objects and lists that contain a number which the parser would change are written out; everything
else stays a schema (`%json`). An object that is written out has its members in the order of the schema, as
with the parser. A schema that cannot be written out is refused, with its place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from serve_app.json_schema.exact.alternatives import Parts, alternatives, only, types
from serve_app.json_schema.exact.documents import Definitions, document
from serve_app.json_schema.exact.numbers import Numbers
from serve_app.json_schema.exact.plain import Inexact
from serve_app.json_schema.numerals import MAX_DIGITS, dumps
from serve_app.json_schema.vocabulary import Schema, UnusableSchema, definitions_of

_MAX_RULES: Final = 4_000
_MAX_CHARS: Final = 2**20  # of the grammar; each schema in it has definitions of its own
_STRING: Final = r'/"([^"\\\x00-\x1F\x7F]|\\(["\\bfnrt]|u00[01][0-9a-fA-F]))*"/'
_SCALARS: Final = ("minLength", "maxLength", "pattern", "format")
_OBJECTS: Final = (
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("minProperties", "maxProperties"),
)
_ARRAYS: Final = ("items", "prefixItems", "additionalItems", "minItems", "maxItems")


def lark(schema: Schema, space: str) -> str | None:
    """The grammar of an adapted schema; None if the parser can enforce the schema as it stands.

    `space`: a regex for the whitespace allowed between tokens. Raises UnusableSchema.
    """
    definitions = definitions_of(schema)
    inexact = Inexact(schema, definitions)
    if not inexact:
        return None
    try:
        return _Writer(definitions, inexact, space).grammar(schema)
    except RecursionError:
        raise UnusableSchema("it nests too deep") from None


def expression(schema: Schema, space: str) -> str:
    """An adapted schema as part of a larger grammar in Lark's notation. Raises UnusableSchema."""
    text = lark(schema, space)
    return f"%lark {{\n{text}}}" if text is not None else f"%json {with_options(schema, space)}"


def with_options(schema: Schema, space: str) -> str:
    """The JSON of a schema, with the parser's options. Raises UnusableSchema."""
    try:
        return dumps({**schema, "x-guidance": {"whitespace_pattern": space, "lenient": True}})
    except ValueError:
        raise UnusableSchema("it holds a number or a string that JSON cannot carry") from None


class _Writer:
    def __init__(self, definitions: Definitions, inexact: Inexact, space: str) -> None:
        self._definitions = definitions
        self._inexact = inexact
        self._space = space
        spaces = {"whitespace_pattern": space} if space else {"whitespace_flexible": False}
        self._options = {**spaces, "lenient": True}
        self._names: dict[str, str] = {}  # the body of a rule -> its name
        self._bodies: dict[str, str] = {}
        self._chars = 0

    def grammar(self, schema: Schema) -> str:
        start = self._value(schema, "$")
        if start is None:
            raise UnusableSchema("no value matches it")
        head = ["%llguidance {}"]
        if self._space:
            pattern = self._space.replace("/", r"\/")
            head = ['%llguidance {"ignore_once": true}', f"%ignore /{pattern}/"]
        rules = (f"{name}: {body}" for name, body in self._bodies.items() if body)
        return "\n".join([*head, f"start: {start}", *rules, ""])

    def _rule(self, body: str, kind: str = "r") -> str:
        """The name of a rule, or of a terminal (`T`); equal rules share one name."""
        if body not in self._names:
            self._names[body] = f"{kind}{len(self._names)}"
            self._define(self._names[body], body)
        return self._names[body]

    def _define(self, name: str, body: str) -> None:
        self._bodies[name] = body
        self._chars += len(body)
        if len(self._bodies) > _MAX_RULES or self._chars > _MAX_CHARS:
            raise UnusableSchema("it is too large for one with numbers of more than 15 digits")

    def _value(self, schema: Any, at: str) -> str | None:
        """The rule for the values of `schema` at the place `at`; None if the schema allows no value."""
        if schema is False:
            return None
        if schema not in self._inexact:
            return self._json(schema)
        # A rule may lead to itself: its name comes before its body.
        key = f"= {dumps(schema)}"
        if key not in self._names:
            self._names[key] = name = f"r{len(self._names)}"
            choices = alternatives(schema, self._definitions)
            found = [rule for parts in choices for rule in self._of_parts(parts, at)]
            self._define(name, " | ".join(dict.fromkeys(found)))
        return self._names[key] if self._bodies.get(self._names[key]) != "" else None

    def _json(self, schema: Any) -> str:
        text = document(schema if isinstance(schema, dict) else {}, self._definitions, self._options)
        return self._rule(f"%json {text}")

    def _of_parts(self, parts: Parts, at: str) -> list[str]:
        """The rules for values that match all `parts`, by type."""
        found: list[str | None] = []
        rest: list[str] = []
        for name in types(parts):
            if name == "number":
                found.append(self._number(parts, at))
            elif name == "object" and (objects := only(parts, _OBJECTS, [name])) in self._inexact:
                found.append(self._object(objects["allOf"], at))
            elif name == "array" and (arrays := only(parts, _ARRAYS, [name])) in self._inexact:
                found.append(self._array(arrays["allOf"], at))
            else:
                rest.append(name)
        if rest:
            found.append(self._json(only(parts, (*_SCALARS, *_OBJECTS, *_ARRAYS), rest)))
        return [each for each in found if each is not None]

    # Numbers

    def _number(self, parts: Parts, at: str) -> str | None:
        try:
            numbers = Numbers(parts, at)
            plain, terminal = numbers.plain(), None
            if plain is None:
                terminal = numbers.terminal()
        except UnusableSchema:
            raise
        except ValueError:
            raise UnusableSchema(f"{at} has a number of more than {MAX_DIGITS} digits") from None
        return self._json(plain) if plain is not None else terminal and self._rule(terminal, "T")

    # Objects

    def _object(self, parts: Sequence[Schema], at: str) -> str | None:
        if any(part.get("patternProperties") for part in parts):
            raise UnusableSchema(
                f"{at}.patternProperties cannot be beside a number that needs more than 15 digits"
            )
        required = dict.fromkeys(name for part in parts for name in part.get("required", ()))
        names = dict.fromkeys(name for part in parts for name in part.get("properties", {})) | required
        members: list[tuple[str, bool]] = []
        for name in names:
            judges = [
                part.get("properties", {}).get(name, part.get("additionalProperties")) for part in parts
            ]
            value = self._value(_all(judges), f"{at}.properties.{name}")
            if value is not None:
                members.append((f'{_quoted(name)} ":" {value}', name in required))
            elif name in required:
                return None
        low = max((part.get("minProperties", 0) for part in parts), default=0) - len(required)
        high = min((part["maxProperties"] for part in parts if "maxProperties" in part), default=None)
        others = self._others(parts, list(names), at)
        least = max(low, 0)
        most = None if high is None else high - len(required)
        if most is not None and most < 0:
            return None
        if others is not None and most != 0:
            members.append((_repeated(others, max(least, 1), most), least > 0))
        elif least > 0:
            return None
        return self._rule(f'"{{" {self._members(members)} "}}"')

    def _others(self, parts: Sequence[Schema], names: list[str], at: str) -> str | None:
        """One member that is not declared."""
        judges = [part.get("additionalProperties") for part in parts]
        value = self._value(_all(judges), f"{at}.additionalProperties")
        if value is None:
            return None
        taken = " | ".join(map(_quoted, names))
        key = self._rule(_STRING + (f" & ~({taken})" if taken else ""), "T")
        return self._rule(f'{key} ":" {value}')

    def _members(self, members: list[tuple[str, bool]]) -> str:
        """Members in order, with commas between those that are present."""
        first = after = ""  # rules for the rest of the members: if they come first, or after others
        for item, is_needed in reversed(members):
            begun = f"{item} {after}"
            if is_needed:
                first, after = begun, self._rule(f'"," {begun}')
            else:
                first = self._rule(f"{begun} | {first}" if first else f"({begun})?")
                after = self._rule(f'("," {item})? {after}')
        return first

    # Arrays

    def _array(self, parts: Sequence[Schema], at: str) -> str | None:
        fixed = max((len(_prefix(part)) for part in parts), default=0)
        least = max((part.get("minItems", 0) for part in parts), default=0)
        most = min((part["maxItems"] for part in parts if "maxItems" in part), default=None)
        items: list[str] = []
        for i in range(fixed):
            judges = [_prefix(part)[i] if i < len(_prefix(part)) else _rest(part) for part in parts]
            value = self._value(_all(judges), f"{at}.prefixItems.{i}")
            if value is None:
                most = min(i, i if most is None else most)
                break
            items.append(value)
        rest = self._value(_all([_rest(part) for part in parts]), f"{at}.items")
        if rest is None:
            most = len(items) if most is None else min(most, len(items))
        if most is not None and least > most:
            return None
        items = items if most is None else items[:most]
        tail = ""
        if rest is not None and len(items) == fixed and (most is None or most > fixed):
            low, high = max(least - fixed, 0), None if most is None else most - fixed
            if fixed:
                tail = _more(rest, low, high)
            else:
                tail = _repeated(rest, max(low, 1), high)
                tail = tail if low else f"({tail})?"
        for i in range(len(items) - 1, -1, -1):
            begun = f'"," {items[i]} {tail}' if i else f"{items[i]} {tail}"
            tail = self._rule(begun if i < least else f"({begun})?")
        return self._rule(f'"[" {tail} "]"')


def _all(judges: Sequence[Any]) -> Any:
    """The schema of values that match all `schemas`; None allows everything."""
    stated = [each for each in judges if each is False or (isinstance(each, dict) and each)]
    if any(each is False for each in stated):
        return False
    return stated[0] if len(stated) == 1 else {"allOf": stated} if stated else True


def _prefix(part: Schema) -> list[Any]:
    """The schemas of the first items."""
    listed = part.get("prefixItems", part.get("items"))
    return listed if isinstance(listed, list) else []


def _rest(part: Schema) -> Any:
    """The schema of the items after the first ones."""
    return part.get("additionalItems") if isinstance(part.get("items"), list) else part.get("items")


def _quoted(name: str) -> str:
    """The literal for a name as written in JSON."""
    return json.dumps(json.dumps(name, ensure_ascii=False))


def _more(item: str, low: int, high: int | None) -> str:
    """`item` repeated `low` to `high` times, each preceded by a comma."""
    return "" if high == 0 else f'("," {item}){{{low},{"" if high is None else high}}}'


def _repeated(item: str, low: int, high: int | None) -> str:
    """One or more `item`s, separated by commas."""
    return f"{item} {_more(item, low - 1, None if high is None else high - 1)}"
