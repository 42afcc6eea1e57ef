"""The text of a pattern -> its tree.

The syntax is that of ECMA-262, plus the spellings of Python and Rust that have no meaning in ECMA-262:
`(?P<name>...)`, `(?i)`, `\\A`, `\\Z`. `[a&&b]` and `[[]` are ordinary classes, as in ECMA-262.
"""

from __future__ import annotations

import re
from typing import Final

from serve_app.json_schema.patterns.classes import LINE_ENDS, NAMES
from serve_app.json_schema.patterns.tree import (
    ANYTHING,
    EMPTY,
    Ahead,
    Anchor,
    Chars,
    Choice,
    Node,
    Range,
    Repeat,
    Sequence,
    Unsure,
)

_QUANTIFIER: Final = re.compile(r"[*+?]|\{(\d+)?(,)?(\d+)?\}")
_HEX: Final = re.compile(
    r"x([0-9A-Fa-f]{2})|[xu]\{([0-9A-Fa-f]{1,8})\}|u([dD][89aAbB][0-9A-Fa-f]{2})\\u([dD][c-fC-F][0-9A-Fa-f]{2})"
    r"|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})"
)
_GROUP: Final = re.compile(
    r"\?(?:(:)|(=)|(!|<=|<!)|(>)|P?<([^>=!]+)>|P=(\w+)\)|#[^)]*\)|([a-zA-Z]*)(-[a-zA-Z]+)?([:)]))"
)
_PROPERTY: Final = re.compile(r"[pP](?:\{(\^?[\w= ]+)\}|([A-Z]))")
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_REPEATED_GROUP_CHARS: Final = 32  # a reference to a longer group is not replaced by a copy of it
_MAX_COUNT: Final = 2**32 - 2  # the parser's own limit


class PatternError(ValueError):
    """No dialect can read the pattern; the message says why."""


class ForeignSyntax(ValueError):
    """The pattern uses syntax of another dialect."""


def read(pattern: str, line_ends: tuple[Range, ...] = LINE_ENDS) -> Node:
    """The tree of a pattern; a dot matches all but `line_ends`. Raises PatternError and ForeignSyntax."""
    reader = _Reader(pattern, line_ends)
    try:
        tree = reader.choice()
    except IndexError:
        raise PatternError("it ends too early") from None
    except RecursionError:
        raise PatternError("it nests too deep") from None
    if reader.at < len(pattern):
        raise PatternError("a ) closes nothing")
    return tree


class _Reader:
    def __init__(self, text: str, line_ends: tuple[Range, ...]) -> None:
        self.at = 0
        self._text = text
        self._line_ends = line_ends
        self._groups: dict[
            str, tuple[Node, int]
        ] = {}  # number and name -> what it matches, its length in the text
        self._count = 0
        self._fold = self._dot_all = self._lines = False

    def choice(self) -> Node:
        """Read up to the ) of a group, or to the end."""
        flags = self._fold, self._dot_all, self._lines
        options = [self._sequence()]
        while self._next("|"):
            options.append(self._sequence())
        self._fold, self._dot_all, self._lines = flags
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        items: list[Node] = []
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            item = self._quantified(self._term())
            items += item.items if isinstance(item, Sequence) else [item]
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _next(self, char: str) -> bool:
        found = self._text.startswith(char, self.at)
        self.at += found
        return found

    def _quantified(self, item: Node) -> Node:
        found = _QUANTIFIER.match(self._text, self.at)
        if found is None or found[0] in ("{}", "{,}"):
            return item
        self.at = found.end()
        low, high = _bounds(found)
        if high is not None and low > high:
            raise PatternError(f"the counts of {found[0]} are out of order")
        repeated: Node = item if (low, high) == (1, 1) else Repeat(item, low, high)
        if self._next("+"):  # possessive, in some dialects
            repeated = Unsure(repeated)
        self._next("?")
        if (again := _QUANTIFIER.match(self._text, self.at)) and again[0] not in ("{}", "{,}"):
            raise PatternError(f"{again[0]} repeats nothing")
        return repeated

    def _term(self) -> Node:
        char = self._text[self.at]
        self.at += 1
        match char:
            case "^" | "$":
                return Unsure() if self._lines else Anchor.START if char == "^" else Anchor.END
            case ".":
                return Chars((() if self._dot_all else self._line_ends), negated=True)
            case "(":
                return self._group()
            case "[":
                return self._set()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError(f"{char} repeats nothing")
        return self._literal(ord(char))

    def _literal(self, code: int) -> Chars:
        return Chars(((code, code),), fold=self._fold)

    def _group(self) -> Node:
        start = self.at
        found = _GROUP.match(self._text, start)
        if found is None:
            if self._text.startswith("?", start):
                raise ForeignSyntax
            return self._captured(None, start)
        self.at = found.end()
        _, ahead, look, atomic, name, reference, on, off, end = found.groups()
        if name:
            return self._captured(name, start)
        if reference:
            return self._reference(reference)
        if end is not None or found[0].startswith("?#"):
            return self._flagged(on or "", off or "", end)
        inside = self.choice()
        self._close()
        if ahead:
            return Ahead(inside)
        return Unsure() if look else Unsure(inside) if atomic else inside

    def _flagged(self, on: str, off: str, end: str | None) -> Node:
        """The flags of `(?i)` apply up to the end of the enclosing group, `(?i:...)` only inside its own
        group."""
        before = self._fold, self._dot_all, self._lines
        for flags, value in ((on, True), (off, False)):
            if set(flags) - set("-imsua"):
                raise ForeignSyntax
            self._fold = value if "i" in flags else self._fold
            self._dot_all = value if "s" in flags else self._dot_all
            self._lines = value if "m" in flags else self._lines
        if end != ":":
            return EMPTY
        inside = self.choice()
        self._close()
        self._fold, self._dot_all, self._lines = before
        return inside

    def _captured(self, name: str | None, start: int) -> Node:
        self._count += 1
        number = str(self._count)
        inside = self.choice()
        self._groups[number] = self._groups[name or number] = inside, self.at - start
        self._close()
        return inside

    def _close(self) -> None:
        if not self._next(")"):
            raise PatternError("a ( is not closed")

    def _reference(self, name: str) -> Node:
        """A back reference, which is not regular. If its group did not match, it matches the empty text."""
        inside, length = self._groups.get(name, (ANYTHING, 0))
        return Unsure(Repeat(inside, 0, 1) if length <= _REPEATED_GROUP_CHARS else ANYTHING)

    def _escape(self) -> Node:
        char = self._text[self.at]
        if char in "bB":
            self.at += 1
            return Unsure()
        if char in "AzZ":
            self.at += 1
            return Anchor.START if char == "A" else Anchor.END
        if char in "123456789":
            number = re.compile(r"\d+").match(self._text, self.at)
            self.at += len(number[0]) if number else 1
            return self._reference(number[0] if number else char)
        if char == "k" and (named := re.compile(r"k<([^>]+)>").match(self._text, self.at)):
            self.at = named.end()
            return self._reference(named[1])
        found = self._escaped()
        return self._literal(found) if isinstance(found, int) else Chars(classes=(found,), fold=self._fold)

    def _escaped(self) -> int | str:
        """The character, or the class, after a backslash."""
        char = self._text[self.at]
        if char in "dDwWsS":
            self.at += 1
            return char
        if found := _PROPERTY.match(self._text, self.at):
            self.at = found.end()
            name = found[1] or found[2]
            if name not in NAMES:
                raise ForeignSyntax
            return f"{char}{{{name}}}"
        if found := _HEX.match(self._text, self.at):
            self.at = found.end()
            return _code(found)
        if char == "c" and re.fullmatch("[A-Za-z]", self._text[self.at + 1 : self.at + 2]):
            self.at += 2
            return ord(self._text[self.at - 1]) % 32
        self.at += 1
        if char == "0" and not self._text[self.at : self.at + 1].isdigit():
            return 0
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and char.isalnum():
            raise ForeignSyntax
        return ord(char)

    def _set(self) -> Chars:
        negated = self._next("^")
        ranges: list[Range] = []
        classes: list[str] = []
        while not self._next("]"):
            low = self._set_item()
            high: int | str = low
            if self._text[self.at] == "-" and self._text[self.at + 1] != "]":
                self.at += 1
                high = self._set_item()
                if isinstance(low, str) or isinstance(high, str):  # `[\\d-x]`: no range, but three items
                    ranges.append((ord("-"), ord("-")))
            for item in (low, high):
                if isinstance(item, str):
                    classes.append(item)
            if isinstance(low, int) and isinstance(high, int):
                if low > high:
                    raise PatternError("a range of characters is out of order")
                ranges.append((low, high))
            else:
                ranges += [(item, item) for item in (low, high) if isinstance(item, int)]
        return Chars(tuple(ranges), tuple(dict.fromkeys(classes)), negated, self._fold)

    def _set_item(self) -> int | str:
        char = self._text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        if self._next("b"):
            return 8
        return self._escaped()


def _bounds(found: re.Match[str]) -> tuple[int, int | None]:
    if found[0] in "*+?":
        return int(found[0] == "+"), 1 if found[0] == "?" else None
    low = int(found[1] or 0)
    high = low if not found[2] else int(found[3]) if found[3] else None
    if max(low, high or 0) > _MAX_COUNT:
        raise PatternError(f"the counts of {found[0]} are too large")
    return low, high


def _code(found: re.Match[str]) -> int:
    if found[3]:
        return 0x10000 + ((int(found[3], 16) - 0xD800) << 10) + int(found[4], 16) - 0xDC00
    code = int(next(group for group in (found[1], found[2], found[5], found[6]) if group), 16)
    if code > 0x10FFFF:
        raise PatternError("a character lies beyond Unicode")
    return code
