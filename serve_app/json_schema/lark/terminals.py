"""Terminals of a grammar, rewritten to match text as it is escaped in JSON strings.

JSON writes a quote, a backslash and control characters as escapes, which begin with a backslash. The only
control characters in a text are those with a one-letter escape.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from serve_app.json_schema.lark.definitions import Definitions
from serve_app.json_schema.lark.notation import Expression, Statements, Token
from serve_app.json_schema.patterns.classes import char_of, range_of
from serve_app.json_schema.patterns.reading import ForeignSyntax, PatternError, read
from serve_app.json_schema.patterns.tree import Chars, Choice, Node, Range, Repeat, Sequence

BACKSLASH: Final = r"/\x{5c}/"
_ESCAPED: Final = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_AS_IT_IS: Final = r"[^\x{22}\x{5c}\x{0}-\x{1f}]"
_LINE_END: Final[tuple[Range, ...]] = ((0x0A, 0x0A),)  # what a dot does not match
_MAX_SERIES_CHARS: Final = 200  # a longer series of terms gets a name
# Escapes, flags and classes that dialects may read in different ways.
_PART: Final = re.compile(r"\\.|\(\?(?P<flags>[a-z-]*)[:)]|\[\^?(?P<set>\]?(?:\\.|[^\]\\])*)", re.DOTALL)
_ODD_SET: Final = re.compile(r"^\]|^(?:\\.|[^\\])*?(?:\[|&&|--|~~)", re.DOTALL)
_FLOAT: Final = r"(([0-9]+\.[0-9]*|\.[0-9]+)([eE](\+|-)?[0-9]+)?|[0-9]+[eE](\+|-)?[0-9]+)"
COMMON: Final = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"(\+|-)?[0-9]+",
    "DECIMAL": r"([0-9]+\.[0-9]*)|(\.[0-9]+)",
    "_EXP": r"[eE](\+|-)?[0-9]+",
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": rf"(\+|-)?{_FLOAT}",
    "NUMBER": rf"[0-9]+|{_FLOAT}",
    "SIGNED_NUMBER": rf"(\+|-)?([0-9]+|{_FLOAT})",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
    "SQL_COMMENT": r"--[^\n]*",
}


@dataclass(frozen=True, slots=True)
class Terminal:
    """The texts of a terminal as JSON writes them: sequences of regexes and names of terminals."""

    whole: str  # "": the empty text alone
    rest: str  # what follows the backslash in texts that begin with one; "": no text does
    empty: bool  # whether the empty text is one of the texts


_EMPTY: Final = Terminal("", "", empty=True)


class Terminals:
    """The terminals of a grammar. A builder of expressions: see `notation.Builder`."""

    def __init__(self, statements: Statements, definitions: Definitions) -> None:
        self._statements = statements
        self._definitions = definitions
        self._known: dict[str, Terminal | None] = {}  # None: the terminal is being read

    def name(self, token: Token) -> Terminal:
        known = self._known.get(token.text, _EMPTY)
        if known is None:
            raise token.fault(f"{token.text} refers to itself")
        if token.text not in self._known:
            self._known[token.text] = None
            self._known[token.text] = self._named(token)
        return self._known[token.text] or _EMPTY

    def _named(self, token: Token) -> Terminal:
        imported = self._statements.imports.get(token.text)
        if imported is not None:
            if imported.text not in COMMON:
                raise imported.fault(f"there is no common.{imported.text}; there are {', '.join(COMMON)}")
            return self.regex(COMMON[imported.text], "")
        if token.text not in self._statements.terminals:
            raise token.fault(f"there is no terminal {token.text}")
        return Expression(self._statements.terminals[token.text], self).read()

    def filled(self, terminal: Terminal) -> Terminal:
        """The same terminal without the empty text."""
        if not terminal.empty:
            return terminal
        return Terminal(
            self._definitions.terminal(f"{terminal.whole} & /(?s:.+)/"), terminal.rest, empty=False
        )

    def literal(self, text: str, *, fold: bool) -> Terminal:
        return self.sequence([self._chars(Chars(((ord(c), ord(c)),), fold=fold)) for c in text])

    def span(self, first: str, last: str) -> Terminal:
        return self._chars(Chars(((ord(first), ord(last)),)))

    def regex(self, text: str, flags: str) -> Terminal:
        """A regex as llguidance's engine reads it. Raises PatternError."""
        self._definitions.spend(100 + 8 * len(text))
        _check(text, flags)
        try:
            found = read(f"(?{flags}){text}" if flags else text, line_ends=_LINE_END)
        except ForeignSyntax:
            raise PatternError("it has an escape or a group that is not available") from None
        return self._node(found)

    def _node(self, node: Node) -> Terminal:
        match node:
            case Chars():
                return self._chars(node)
            case Sequence():
                return self.sequence([self._node(item) for item in node.items])
            case Choice():
                return self.choice([self._node(option) for option in node.options])
            case Repeat():
                return self.repeat(self._node(node.item), node.low, node.high)
            case _:
                raise PatternError("assertions, look-around and references are not available")

    def sequence(self, parts: list[Terminal]) -> Terminal:
        whole = rest = ""
        for part in reversed(parts):
            begun = [self.join(part.rest, whole)] if part.rest else []
            rest = self._either([*begun, rest] if part.empty and rest else begun)
            whole = self.join(part.whole, whole)
        return Terminal(whole, rest, all(part.empty for part in parts))

    def choice(self, options: list[Terminal]) -> Terminal:
        whole = self._either([option.whole for option in options if option.whole])
        if not all(option.whole for option in options):
            whole = self._times(whole, 0, 1)
        rest = self._either([option.rest for option in options if option.rest])
        return Terminal(whole, rest, any(option.empty for option in options))

    def repeat(self, item: Terminal, low: int, high: int | None) -> Terminal:
        if high == 0:
            return _EMPTY
        fewer = self._times(item.whole, max(low - 1, 0), None if high is None else high - 1)
        rest = item.rest and self.join(item.rest, fewer)
        return Terminal(self._times(item.whole, low, high), rest, low == 0 or item.empty)

    def join(self, first: str, second: str) -> str:
        """Put one series after another. Merge neighbouring regexes into one."""
        self._definitions.spend(20)
        if not (first and second):
            return first or second
        first, second = self._short(first), self._short(second)
        return first[:-1] + second[1:] if first[-1] == second[0] == "/" else f"{first} {second}"

    def _short(self, series: str) -> str:
        return series if len(series) <= _MAX_SERIES_CHARS else self._definitions.terminal(series)

    def _either(self, ways: list[str]) -> str:
        if len(ways) < 2:
            return "".join(ways)
        if all(map(_is_regex, ways)) and sum(map(len, ways)) <= _MAX_SERIES_CHARS:
            return f"/(?:{'|'.join(way[1:-1] for way in ways)})/"
        return self._definitions.terminal(" | ".join(ways))

    def _times(self, series: str, low: int, high: int | None) -> str:
        if not series or high == 0:
            return ""
        counts = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((low, high))
        if counts is None:
            counts = f"{{{low},{'' if high is None else high}}}"
        if _is_regex(series) and len(series) <= _MAX_SERIES_CHARS:
            return f"/(?:{series[1:-1]}){counts}/" if counts else series
        return self._definitions.terminal(series) + counts

    def _chars(self, chars: Chars) -> Terminal:
        self._definitions.spend(20)
        letters = "".join(char_of(ord(to)) for char, to in _ESCAPED.items() if _contains(chars, char))
        ways = [_plain(chars), rf"\x{{5c}}[{letters}]" if letters else ""]
        if not any(ways):
            raise PatternError("a control character without a short escape in JSON is not available")
        whole = self._either([f"/{way}/" for way in ways if way])
        return Terminal(whole, f"/[{letters}]/" if letters else "", empty=False)


def _check(text: str, flags: str) -> None:
    """Raises PatternError for syntax that dialects read differently."""
    if set(flags) - set("ims"):
        raise PatternError("of flags only i, m and s are available")
    for found in _PART.finditer(text):
        what = found[0]
        if what in (r"\<", r"\>") or set(found["flags"] or "") - set("ims-"):
            raise PatternError(f"{what} is not available")
        if found["set"] is not None and _ODD_SET.search(found["set"]):
            raise PatternError(
                "of classes neither parts nor operators are available; write [ and ] as \\[ and \\]"
            )


def _is_regex(series: str) -> bool:
    return series.startswith("/") and " " not in series


def _plain(chars: Chars) -> str:
    """The regex for the characters of a set that JSON does not escape; "" if there are none."""
    only_escaped = all(a == b and (a < 0x20 or chr(a) in _ESCAPED) for a, b in chars.ranges)
    if only_escaped and not chars.negated and not chars.classes:
        return ""
    inside = "".join(map(range_of, chars.ranges))
    inside += "".join(f"\\{name}" for name in chars.classes)
    text = f"[^{inside}]" if chars.negated and inside else f"[{inside}]" if inside else _AS_IT_IS
    if (
        chars.negated
        or chars.classes
        or any(a < 0x20 or a <= 0x22 <= b or a <= 0x5C <= b for a, b in chars.ranges)
    ):
        text = f"[{text}&&{_AS_IT_IS}]"
    elif len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
        text = inside
    return f"(?i:{text})" if chars.fold else text


def _contains(chars: Chars, char: str) -> bool:
    """Whether a set has one of the characters that JSON escapes. Raises PatternError for an unknown class."""
    found = [low <= ord(char) <= high for low, high in chars.ranges]
    found += [_has(name, char) for name in chars.classes]
    return any(found) != chars.negated


def _has(name: str, char: str) -> bool:
    if name in ("s", "S"):
        return char.isspace() == (name == "s")
    if name in ("d", "D", "w", "W"):
        return name in ("D", "W")
    category = re.fullmatch(r"[pP]\{(\^?)([LMNPSZC][a-z]?)\}", name)
    if category is None:
        raise PatternError(f"\\{name} is not available; general categories by one or two letters are")
    return unicodedata.category(char).startswith(category[2]) != ((name[0] == "P") != bool(category[1]))
