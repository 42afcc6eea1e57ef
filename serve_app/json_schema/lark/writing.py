"""Turns a grammar of a text into the grammar of the same text inside a JSON string.

The parser's lexer takes the longest terminal and looks one byte ahead, never further. In JSON, two different
characters may both be written with a leading backslash. If a terminal may continue with one of the two but
must end before the other, the lexer would go too far. So every part of a grammar is written in up to four
forms: a part's first backslash is read by the part or before it, and the backslash after the part is read by
the part or left to what follows. The longest terminal is then the same as in the plain text.

Ignored text may follow each terminal, including the last, and may match the same text as a terminal.
"""

from __future__ import annotations

from operator import or_
from typing import Final

from serve_app.json_schema.lark.definitions import Definitions
from serve_app.json_schema.lark.notation import Expression, LarkError, Statements, Token, plain_name
from serve_app.json_schema.lark.terminals import BACKSLASH, Terminal, Terminals

_MAX_INLINE_CHARS: Final = 200  # of a series in a rule; a longer series is a rule of its own
_NOTHING: Final = '""'
_ENDS: Final = (False, True)  # of a part: whether a backslash was read at its beginning, or at its end

Symbol = str | Terminal  # the name of a rule, or a terminal that is never empty
Series = tuple[Symbol, ...]
_Traits = tuple[bool, ...]


def in_json(text: str, name: str) -> list[str]:
    """The rules for the inside of JSON strings whose decoded text matches the grammar `text`.

    The first rule is called `name`, in lower case, and all other names begin with it. Raises LarkError.
    """
    definitions = Definitions(name)
    try:
        statements = Statements(text)
        terminals = Terminals(statements, definitions)
        start = _Writer(_Rules(statements, terminals, definitions).choices, terminals, definitions).write()
    except RecursionError:
        raise LarkError("it nests too deep") from None
    return [f"{name}: {start}", *definitions.lines()]


class _Rules:
    """Rules as choices of sequences, without groups and repetitions. A builder: see `notation.Builder`."""

    def __init__(self, statements: Statements, terminals: Terminals, definitions: Definitions) -> None:
        self._statements = statements
        self._terminals = terminals
        self._definitions = definitions
        self._ignored: Series = ()
        self.choices: dict[str, list[Series]] = {}
        ignored = [Expression(tokens, terminals).read() for tokens in statements.ignored]
        if ignored:
            self._ignored = self.repeat(self._leaf(terminals.choice(ignored)), 0, None)
        for name, tokens in statements.rules.items():
            self.choices[name] = [Expression(tokens, self).read()]

    def sequence(self, parts: list[Series]) -> Series:
        self._definitions.spend(sum(map(len, parts)))
        return tuple(symbol for part in parts for symbol in part)

    def choice(self, options: list[Series]) -> Series:
        self._definitions.spend(20 * len(options))
        name = f"#{len(self.choices)}"  # no rule of a client has such a name
        self.choices[name] = options
        return (name,)

    def repeat(self, item: Series, low: int, high: int | None) -> Series:
        """A counted repetition is halved again and again, so that it needs few rules."""
        if len(item) > 1:
            item = self.choice([item])
        return self._exactly(item, low) + (
            self._star(item) if high is None else self._at_most(item, high - low)
        )

    def _star(self, item: Series) -> Series:
        name = self.choice([()])
        self.choices[str(name[0])].append(name + item)
        return name

    def _exactly(self, item: Series, count: int) -> Series:
        if count < 4:
            return item * count
        return self.choice([self._exactly(item, count // 2)]) * 2 + item * (count % 2)

    def _at_most(self, item: Series, count: int) -> Series:
        if count < 2:
            return self.choice([(), item]) if count else ()
        if count % 2:
            return self._at_most(self.choice([item * 2]), count // 2) + self.choice([(), item])
        return self.choice([(), item + self._at_most(item, count - 1)])

    def literal(self, text: str, *, fold: bool) -> Series:
        return self._leaf(self._terminals.literal(text, fold=fold))

    def span(self, first: str, last: str) -> Series:
        return self._leaf(self._terminals.span(first, last))

    def regex(self, text: str, flags: str) -> Series:
        return self._leaf(self._terminals.regex(text, flags))

    def name(self, token: Token) -> Series:
        name = plain_name(token.text)
        if token.kind == "terminal":
            return self._leaf(self._terminals.name(token))
        if name not in self._statements.rules:
            raise token.fault(f"there is no rule {name}")
        return (name,)

    def _leaf(self, terminal: Terminal) -> Series:
        """A terminal, even one that matches the empty text, followed by ignored text."""
        series: Series = (self._terminals.filled(terminal),) if terminal.whole else ()
        return (self.choice([(), series]) if terminal.empty else series) + self._ignored


class _Writer:
    def __init__(
        self, choices: dict[str, list[Series]], terminals: Terminals, definitions: Definitions
    ) -> None:
        self._choices = choices
        self._join = terminals.join
        self._definitions = definitions
        self._pending: list[tuple[str, bool, bool]] = []  # forms that were named and are not written yet
        # For each rule that some text matches: whether the empty text does, whether another text does, and
        # # whether a text does that begins with a backslash in JSON.
        self._traits: dict[str, _Traits] = {}
        while self._learn():
            pass

    def write(self) -> str:
        """Write all forms that are needed, and return the name of the first rule. Raises LarkError."""
        if "start" not in self._traits:
            raise LarkError("no text matches the rule start")
        start = self._rule("start", False, False)
        while self._pending:
            name, left, right = self._pending.pop()
            ways = [self._series(series, left, right) for series in self._choices[name]]
            self._definitions.write(self._rule(name, left, right), " | ".join(way for way in ways if way))
        return start

    def _learn(self) -> bool:
        """Look at each rule once more, from the last to the first. Returns whether anything new was found."""
        grown = False
        for name in reversed(self._choices):
            for series in self._choices[name]:
                self._definitions.spend(2 + len(series))
                traits = self._traits_of(series)
                if traits is not None:
                    before = self._traits.get(name)
                    both = traits if before is None else tuple(map(or_, before, traits))
                    grown |= both != before
                    self._traits[name] = both
        return grown

    def _traits_of(self, series: Series) -> _Traits | None:
        full = escaped = False
        empty = True
        for symbol in series:
            traits = self._of(symbol)
            if traits is None:
                return None
            full |= traits[1]
            escaped |= empty and traits[2]
            empty &= traits[0]
        return empty, full, escaped

    def _of(self, symbol: Symbol) -> _Traits | None:
        return (False, True, bool(symbol.rest)) if isinstance(symbol, Terminal) else self._traits.get(symbol)

    def _can(self, symbol: Symbol, left: bool, right: bool) -> bool:
        """Whether a part can be written in the form given by `left` and `right`."""
        traits = self._of(symbol)
        if traits is None:
            return False
        empty, full, escaped = traits
        return (escaped or (right and empty)) if left else (full or not right)

    def _form(self, symbol: Symbol, left: bool, right: bool) -> str:
        if isinstance(symbol, str):
            return self._rule(symbol, left, right)
        series = symbol.rest if left else symbol.whole
        return self._definitions.terminal(self._join(series, BACKSLASH if right else ""))

    def _rule(self, name: str, left: bool, right: bool) -> str:
        found, is_new = self._definitions.reserved((name, left, right))
        if is_new:
            self._pending.append((name, left, right))
        return found

    def _series(self, series: Series, left: bool, right: bool) -> str:
        """Goes from the last symbol to the first, with the forms of what follows it. "": no form exists."""
        starts = [{left}]  # of each symbol
        for symbol in series:
            starts.append({end for end in _ENDS for start in starts[-1] if self._can(symbol, start, end)})
        after = {right: ""} if right in starts.pop() else {}
        for symbol in reversed(series):
            before: dict[bool, list[str]] = {}
            for start in starts.pop():
                ways = [
                    f"{self._form(symbol, start, end)} {tail}".rstrip()
                    for end, tail in after.items()
                    if self._can(symbol, start, end)
                ]
                if ways:
                    before[start] = ways
            after = {start: self._short(ways, len(before) > 1) for start, ways in before.items()}
        return after[left] or _NOTHING if left in after else ""

    def _short(self, ways: list[str], is_shared: bool) -> str:
        text = " | ".join(ways)
        is_long = len(ways) > 1 or (is_shared and " " in text) or len(text) > _MAX_INLINE_CHARS
        return self._definitions.rule(text) if is_long else text
