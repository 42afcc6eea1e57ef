"""Whether one text may match two patterns: a search through pairs of states of their automata."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from serve_app.json_schema.patterns.tree import (
    ANYTHING,
    LAST,
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
from serve_app.json_schema.patterns.writing import Translation

_MAX_STATES: Final = 1_000  # of one pattern, with its counts written out
_MAX_PAIRS: Final = 50_000  # of all patterns of one schema, about 0.3 s

_State = tuple[int, bool]  # the state's number, and whether the text must have ended


class Overlaps:
    """Compares the patterns of one schema, for a bounded time."""

    def __init__(self) -> None:
        self._left = _MAX_PAIRS
        self._automata: dict[str, _Automaton | None] = {}

    def may(self, a: Translation, b: Translation) -> bool:
        """Whether some text may match both; False only if certainly none does."""
        first, second = self._automaton(a), self._automaton(b)
        if first is None or second is None:
            return True
        pending = [(i, j) for i in first.begin() for j in second.begin()]
        seen = set(pending)
        while pending:
            i, j = pending.pop()
            self._left -= 1
            if (i[0] == first.end and j[0] == second.end) or self._left < 0:
                return True
            new = {
                (k, m)
                for ranges, after in first.steps(i)
                for others, then in second.steps(j)
                if _meet(ranges, others)
                for k in first.closure(after)
                for m in second.closure(then)
            } - seen
            seen |= new
            pending += new
        return False

    def _automaton(self, translation: Translation) -> _Automaton | None:
        pattern = translation.patterns[0]
        if pattern not in self._automata:
            try:
                self._automata[pattern] = _Automaton(translation.trees[0])
            except _TooLarge:
                self._automata[pattern] = None
        return self._automata[pattern]


class _TooLarge(Exception):
    """More states than the search may visit."""


class _Automaton:
    """Accepts every text in which the pattern matches somewhere."""

    def __init__(self, tree: Node) -> None:
        self._chars: list[list[tuple[list[Range], int]]] = []
        self._empty: list[list[tuple[Anchor | None, int]]] = []  # steps that read nothing
        self._closures: dict[int, set[_State]] = {}
        self._start, self.end = self._state(), self._state()
        self._add(Sequence((ANYTHING, tree, ANYTHING)), self._start, self.end)

    def begin(self) -> set[_State]:
        return self.closure(self._start, at_start=True)

    def steps(self, state: _State) -> list[tuple[list[Range], int]]:
        number, ended = state
        return [] if ended else self._chars[number]

    def closure(self, number: int, *, at_start: bool = False) -> set[_State]:
        """All states that can be reached without reading a character."""
        if not at_start and number in self._closures:
            return self._closures[number]
        found: set[_State] = set()
        pending = [(number, False)]
        while pending:
            state = pending.pop()
            if state in found:
                continue
            found.add(state)
            for anchor, after in self._empty[state[0]]:
                if anchor is not Anchor.START or at_start:
                    pending.append((after, state[1] or anchor is Anchor.END))
        if not at_start:
            self._closures[number] = found
        return found

    def _state(self) -> int:
        if len(self._chars) > _MAX_STATES:
            raise _TooLarge
        self._chars.append([])
        self._empty.append([])
        return len(self._chars) - 1

    def _add(self, node: Node, start: int, end: int) -> None:
        """Add the paths from `start` to `end` that read the texts matched by `node`."""
        match node:
            case Chars():
                self._chars[start].append((_ranges(node), end))
            case Choice():
                for option in node.options:
                    self._add(option, start, end)
            case Sequence():
                self._chain(node.items, start, end)
            case Repeat():
                self._repeat(node, start, end)
            case Unsure():
                self._add(node.instead, start, end)
            case Anchor():
                self._empty[start].append((node, end))
            case Ahead():
                self._empty[start].append((None, end))

    def _chain(self, items: Iterable[Node], start: int, end: int) -> None:
        for item in items:
            after = self._state()
            self._add(item, start, after)
            start = after
        self._empty[start].append((None, end))

    def _repeat(self, node: Repeat, start: int, end: int) -> None:
        for _ in range(node.low):
            after = self._state()
            self._add(node.item, start, after)
            start = after
        loop = self._state()
        self._empty[start].append((None, loop))
        self._empty[loop].append((None, end))
        if node.high is None:
            self._add(node.item, loop, loop)
            return
        for _ in range(node.high - node.low):
            after = self._state()
            self._add(node.item, loop, after)
            self._empty[after].append((None, end))
            loop = after


def _ranges(chars: Chars) -> list[Range]:
    """The characters of a set; all characters if the set does not consist of ranges alone."""
    if chars.classes or chars.fold:
        return [LAST]
    if not chars.negated:
        return list(chars.ranges)
    edges = [(-1, -1), *_merged(chars.ranges), (LAST[1] + 1, LAST[1] + 1)]
    return [(a[1] + 1, b[0] - 1) for a, b in pairwise(edges) if a[1] + 1 <= b[0] - 1]


def _merged(ranges: Iterable[Range]) -> list[Range]:
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return merged


def _meet(a: list[Range], b: list[Range]) -> bool:
    return any(low <= last and first <= high for low, high in a for first, last in b)
