"""Finds the first stop string in a text that arrives in pieces.

*First* is the match that ends earliest; if several matches end together, it is the longest.
The result does not depend on how the text was cut into pieces. Only the longest suffix
that may still become a match is held back.

The search uses the Aho-Corasick algorithm on a trie whose nodes are made when the text
first reaches them: a node is a range of the sorted stop strings. A request with a million characters of stop
strings therefore costs one sort at the start, and then amortised constant time per character of text.
Handles characters only, not tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class StopStrings:
    """The stop strings of a request, shared by its choices."""

    def __init__(self, strings: Iterable[str], *, include_stop: bool = False) -> None:
        """`include_stop` keeps the matched string in the text. Raises ValueError on an empty string."""
        self.include_stop = include_stop
        self.strings = sorted(set(strings))
        if "" in self.strings:
            raise ValueError("a stop string must not be empty")
        first = "".join(sorted({s[0] for s in self.strings}))
        self.first_char = re.compile(f"[{re.escape(first)}]") if first else None
        self.root = _Node(0, len(self.strings), 0)


class _Node:
    """The stop strings with a common prefix: `strings[low:high]`, which agree on `depth` characters."""

    __slots__ = ("children", "depth", "fallback", "high", "low", "match")

    def __init__(self, low: int, high: int, depth: int) -> None:
        self.low = low
        self.high = high
        self.depth = depth
        self.children: dict[str, _Node] = {}
        self.fallback: _Node | None = None  # longest proper suffix that is also a prefix; the root has none
        self.match: str | None = None  # longest stop string that ends here


def _extend(strings: list[str], node: _Node, char: str) -> _Node | None:
    """Make the child of `node` along `char`, unlinked; None if no stop string continues with `char`."""
    depth = node.depth

    def char_at(s: str) -> str:
        return s[depth : depth + 1]  # "" sorts first, as the shorter string does

    low = bisect_left(strings, char, node.low, node.high, key=char_at)
    high = bisect_right(strings, char, low, node.high, key=char_at)
    if low == high:
        return None
    child = _Node(low, high, depth + 1)
    if len(strings[low]) == child.depth:
        child.match = strings[low]
    return child


def _step(stops: StopStrings, node: _Node, char: str) -> _Node:
    """The state after one more character."""
    made: list[_Node] = []
    target = stops.root
    state: _Node | None = node
    while state is not None:
        child = state.children.get(char)
        if child is not None:
            target = child
            break
        child = _extend(stops.strings, state, char)
        if child is not None:
            state.children[char] = child
            made.append(child)
        state = state.fallback
    # Each new node falls back to the next shorter one, down to a node that was linked before.
    for child in reversed(made):
        child.fallback = target
        child.match = child.match or target.match
        target = child
    return target


class StopStep(NamedTuple):
    """Text that is now certain, and the stop string that ended the text, if any."""

    text: str
    stop: str | None


class StopMatcher:
    """Looks for the stop strings in the text of one choice."""

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._node = stops.root
        self._held = ""  # its length is the node's depth

    def push(self, text: str, *, may_end: bool = True) -> StopStep:
        """Take more text. After a match the matcher is done and must not be pushed again.

        Without `may_end`, a stop string that ends within `text` is treated as ordinary text.
        """
        stops, node = self._stops, self._node
        root, first_char = stops.root, stops.first_char
        if first_char is None:
            return StopStep(text, None)
        buffer = self._held + text
        position = len(self._held)
        while position < len(buffer):
            if node is root:
                hit = first_char.search(buffer, position)
                if hit is None:
                    break
                position = hit.start()
            node = _step(stops, node, buffer[position])
            position += 1
            if node.match is not None and may_end:
                end = position if stops.include_stop else position - len(node.match)
                self._node, self._held = root, ""
                return StopStep(buffer[:end], node.match)
        safe = len(buffer) - node.depth
        self._node, self._held = node, buffer[safe:]
        return StopStep(buffer[:safe], None)

    def flush(self) -> str:
        """The held text, when the text has ended without a match."""
        text, self._held, self._node = self._held, "", self._stops.root
        return text
