"""The text of a grammar in Lark's notation, as llguidance reads it -> its statements and expressions.

Features that only llguidance's own lexer could enforce are refused by name: priorities, templates,
attributes of rules, tokens of the model, terminals that are intersections, other grammars inside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, NoReturn, Protocol, TypeVar

from serve_app.json_schema.patterns import PatternError

_MAX_COUNT: Final = 10_000
_MAX_DEPTH: Final = 30  # llguidance's own limit
_SHOWN_CHARS: Final = 60  # of a token in an error
_TOKEN: Final = re.compile(
    r"(?P<skip>(?:\#|//)[^\n]*|[ \t]+)|(?P<newline>\r?\n)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)|(?P<open>["/][^\n]*)'
    r"|(?P<rule>!?[_?]?[a-z][_a-z0-9\-]*)|(?P<terminal>_?[A-Z][_A-Z0-9\-]*)|(?P<number>[0-9]+)"
    r"|(?P<sign>->|\.\.|[^%])|(?P<word>%[a-z]*)",
)
_BARE: Final = {".": "priorities", "{": "templates", "[": "attributes of rules"}
_LITERAL_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)")

T = TypeVar("T")


class LarkError(ValueError):
    """The grammar cannot be read; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    line: int

    @property
    def shown(self) -> str:
        return self.text if len(self.text) <= _SHOWN_CHARS else f"{self.text[:_SHOWN_CHARS]}..."

    def fault(self, reason: str) -> LarkError:
        return LarkError(f"line {self.line}: {reason}")


class Builder(Protocol[T]):
    """Builds a result from an expression and its parts. Methods for leaves may raise PatternError, and
    methods for names LarkError."""

    def sequence(self, parts: list[T]) -> T: ...

    def choice(self, options: list[T]) -> T: ...

    def repeat(self, item: T, low: int, high: int | None) -> T: ...

    def literal(self, text: str, *, fold: bool) -> T: ...

    def span(self, first: str, last: str) -> T: ...

    def regex(self, text: str, flags: str) -> T: ...

    def name(self, token: Token) -> T: ...


class Statements:
    """The statements of a grammar, with their expressions not parsed yet."""

    def __init__(self, text: str) -> None:
        """Raises LarkError."""
        self.rules: dict[str, list[Token]] = {}
        self.terminals: dict[str, list[Token]] = {}
        self.imports: dict[str, Token] = {}  # the name here -> the name among the common terminals
        self.ignored: list[list[Token]] = []
        for tokens in _lines(text):
            match tokens[0].text:
                case "%ignore":
                    self.ignored.append(tokens)
                case "%import":
                    self._import(tokens)
                case _:
                    self._define(tokens)
        if "start" not in self.rules:
            raise LarkError("there is no rule start")

    def _import(self, tokens: list[Token]) -> None:
        match [token.text for token in tokens[1:]]:
            case ["common", ".", _]:
                self._add(self.imports, tokens[3], tokens[3])
            case ["common", ".", _, "->", _]:
                self._add(self.imports, tokens[5], tokens[3])
            case ["common", "(", *_, ")"]:
                for token in tokens[3:-1]:
                    if token.text != ",":
                        self._add(self.imports, token, token)
            case _:
                raise tokens[0].fault("only terminals of common can be imported")

    def _define(self, tokens: list[Token]) -> None:
        name, after = tokens[0], tokens[1].text if len(tokens) > 1 else ""
        if name.kind not in ("rule", "terminal"):
            raise name.fault(f"{name.text} does not begin a rule or a terminal, and is not available")
        if after != ":":
            raise name.fault(
                f"{_BARE[after]} are not available" if after in _BARE else f"a colon must follow {name.text}"
            )
        self._add(self.rules if name.kind == "rule" else self.terminals, name, tokens[1:])

    def _add(self, among: dict[str, T], name: Token, value: T) -> None:
        plain = plain_name(name.text)
        if plain in self.rules or plain in self.terminals or plain in self.imports:
            raise name.fault(f"{plain} is defined twice")
        among[plain] = value


def plain_name(name: str) -> str:
    """The name of a rule, without the marks that affect only the parse tree. A leading underscore stays."""
    return name.removeprefix("!").removeprefix("?")


def _lines(text: str) -> list[list[Token]]:
    """The statements, without empty ones. An expression may continue on a line that begins with a bar."""
    found: list[list[Token]] = [[]]
    line = 1
    for match in _TOKEN.finditer(text):
        token = Token(match.lastgroup or "", match[0], line)
        if token.kind == "newline":
            found.append([])
            line += 1
        elif token.kind != "skip":
            while token.text == "|" and len(found) > 1 and not found[-1]:
                found.pop()
            found[-1].append(token)
    return [each for each in found if each]


class Expression(Generic[T]):
    """The expression after the first token of a statement."""

    def __init__(self, tokens: Sequence[Token], builder: Builder[T]) -> None:
        self._tokens = tokens
        self._builder = builder
        self._at = 1
        self._depth = 0

    def read(self) -> T:
        """Raises LarkError."""
        found = self._choice()
        if self._at < len(self._tokens):
            self._fail()
        return found

    def _next(self) -> str:
        """The text of the next token; "" at the end."""
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _take(self, *texts: str) -> str:
        """The next token if it is one of these, else ""."""
        found = self._next()
        if found not in texts:
            return ""
        self._at += 1
        return found

    def _need(self, text: str) -> None:
        if not self._take(text):
            self._fail(f"{text} is missing before")

    def _fail(self, reason: str = "this is not available here:") -> NoReturn:
        if self._at < len(self._tokens):
            raise self._tokens[self._at].fault(f"{reason} {self._tokens[self._at].shown}")
        raise self._tokens[-1].fault(f"{reason} the end of the statement")

    def _choice(self) -> T:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail("it nests too deep at")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else self._builder.choice(options)

    def _sequence(self) -> T:
        parts: list[T] = []
        while self._next() not in ("", "|", ")", "]", "->"):
            parts.append(self._repeated())
        if self._take("->"):  # a name for the tree
            self._at += 1
        return parts[0] if len(parts) == 1 else self._builder.sequence(parts)

    def _repeated(self) -> T:
        item = self._item()
        if sign := self._take("?", "*", "+"):
            return self._builder.repeat(item, int(sign == "+"), 1 if sign == "?" else None)
        if self._take("~"):
            low = self._count()
            return self._times(item, low, self._count() if self._take("..") else low)
        if self._take("{"):
            low = 0 if self._next() == "," else self._count()
            high: int | None = low
            if self._take(","):
                high = None if self._next() == "}" else self._count()
            self._need("}")
            return self._times(item, low, high)
        return item

    def _count(self) -> int:
        text = self._next()
        if not text.isdecimal() or len(text) > len(str(_MAX_COUNT)) or int(text) > _MAX_COUNT:
            self._fail(f"a count of at most {_MAX_COUNT} is missing before")
        self._at += 1
        return int(text)

    def _times(self, item: T, low: int, high: int | None) -> T:
        if high is not None and low > high:
            self._fail("counts are out of order before")
        return self._builder.repeat(item, low, high)

    def _item(self) -> T:
        if opening := self._take("(", "["):
            inside = self._choice()
            self._need(")" if opening == "(" else "]")
            return inside if opening == "(" else self._builder.repeat(inside, 0, 1)
        if self._at == len(self._tokens):
            self._fail("something is missing before")
        token = self._tokens[self._at]
        if token.kind == "open":
            self._fail("this is not closed:")
        if token.kind not in ("string", "regex", "rule", "terminal"):
            self._fail()
        self._at += 1
        try:
            return self._builder.name(token) if token.kind in ("rule", "terminal") else self._leaf(token)
        except PatternError as error:
            raise token.fault(f"{token.shown}: {error}") from None

    def _leaf(self, token: Token) -> T:
        if token.kind == "regex":
            text, _, flags = token.text[1:].rpartition("/")
            return self._builder.regex(text.replace(r"\/", "/"), flags)
        if not self._take(".."):
            return self._builder.literal(_unquoted(token.text), fold=token.text.endswith("i"))
        first, last = _unquoted(token.text), _unquoted(self._next())
        self._at += 1
        if len(first) != 1 or len(last) != 1 or first > last:
            raise PatternError("a range goes from one character to a later one")
        return self._builder.span(first, last)


def _unquoted(text: str) -> str:
    """The value of a string. Raises PatternError."""
    escaped = _LITERAL_ESCAPE.sub(lambda found: rf"\u00{found[1]}" if found[1] else found[0], text)
    try:
        return str(json.loads(escaped.removesuffix("i")))
    except ValueError:
        raise PatternError("this is no string as JSON writes them") from None
