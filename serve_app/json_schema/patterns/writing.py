"""The tree of a pattern -> patterns that the parser enforces.

The parser accepts `^` at the very beginning, `$` at the very end, and no other assertion. Other
assertions are left out, so that the written pattern matches at least the same texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from serve_app.json_schema.patterns import classes
from serve_app.json_schema.patterns.reading import ForeignSyntax, read
from serve_app.json_schema.patterns.tree import (
    EMPTY,
    Ahead,
    Anchor,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
    Unsure,
    parts,
)


@dataclass(frozen=True, slots=True)
class Translation:
    """Patterns, all to be matched by a text; unless `exact`, they match more than the client's pattern."""

    patterns: tuple[str, ...]
    exact: bool
    trees: tuple[Node, ...] = ()


class _Side(Enum):
    """The context on one side of a part of a pattern."""

    OPEN = auto()  # nothing that is written, and any text
    ANCHORED = auto()  # nothing at all
    WRITTEN = auto()  # another part


def translate(pattern: str) -> Translation:
    """The patterns that replace a client's pattern. Raises PatternError."""
    try:
        tree = read(pattern)
    except ForeignSyntax:
        return Translation((), exact=False)
    trees = _split(tree)
    writer = _Writer()
    patterns = tuple(writer.write(each, _Side.OPEN, _Side.OPEN) for each in trees)
    return Translation(patterns, writer.exact, trees)


def _split(tree: Node) -> tuple[Node, ...]:
    """Look-aheads after the `^` of a pattern become separate patterns."""
    if not isinstance(tree, Sequence) or tree.items[:1] != (Anchor.START,):
        return (tree,)
    rest = tree.items[1:]
    ahead: list[Node] = []
    while rest and isinstance(rest[0], Ahead):
        ahead.append(rest[0].item)
        rest = rest[1:]
    return tuple(Sequence((Anchor.START, *_items(each))) for each in (Sequence(rest), *ahead))


def _items(node: Node) -> tuple[Node, ...]:
    return node.items if isinstance(node, Sequence) else (node,)


class _Writer:
    def __init__(self) -> None:
        self.exact = True

    def write(self, node: Node, left: _Side, right: _Side) -> str:
        match node:
            case Chars():
                return classes.write(node)
            case Sequence():
                return self._sequence(node, left, right)
            case Choice():
                return "(?:" + "|".join(self.write(option, left, right) for option in node.options) + ")"
            case Repeat():
                return self._repeat(node, left, right)
            case Anchor.START:
                return self._anchor("^", left)
            case Anchor.END:
                return self._anchor("$", right)
            case Unsure():
                self.exact = False
                return self.write(node.instead, left, right)
            case Ahead():
                self.exact = False
                return ""

    def _anchor(self, text: str, side: _Side) -> str:
        self.exact &= side is not _Side.WRITTEN
        return text if side is _Side.OPEN else ""

    def _sequence(self, node: Sequence, left: _Side, right: _Side) -> str:
        starts = self._sides(node.items, Anchor.START, left)
        ends = self._sides(node.items[::-1], Anchor.END, right)[::-1]
        written = [
            self.write(item, start, end) for item, start, end in zip(node.items, starts, ends, strict=True)
        ]
        # The anchors go to the outside, whichever was written first.
        body = "".join(part for part in written if part not in ("^", "$"))
        return f"{'^' * ('^' in written)}{body}{'$' * ('$' in written)}"

    def _sides(self, items: tuple[Node, ...], anchor: Anchor, side: _Side) -> list[_Side]:
        """The context before each of `items`, going from one end to the other."""
        sides: list[_Side] = []
        for item in items:
            sides.append(side)
            if item is anchor and side is _Side.OPEN:
                side = _Side.ANCHORED
            elif _takes_room(item):
                side = _Side.WRITTEN
        return sides

    def _repeat(self, node: Repeat, left: _Side, right: _Side) -> str:
        if node.high == 1 and has_anchor(node.item):
            return self.write(Choice((node.item, EMPTY)), left, right)
        if node.high == 0:
            return ""
        text = self.write(node.item, _Side.WRITTEN, _Side.WRITTEN)
        if not text:
            return ""
        counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
        if counts is None:
            high = "" if node.high is None else str(node.high)
            counts = f"{{{node.low}}}" if node.low == node.high else f"{{{node.low},{high}}}"
        return f"{text}{counts}" if isinstance(node.item, Chars) else f"(?:{text}){counts}"


def _takes_room(node: Node) -> bool:
    """Whether the part may match a nonempty text."""
    if isinstance(node, Repeat) and node.high == 0:
        return False
    return isinstance(node, Chars) or any(map(_takes_room, parts(node)))


def has_anchor(node: Node) -> bool:
    return isinstance(node, Anchor) or any(map(has_anchor, parts(node)))
