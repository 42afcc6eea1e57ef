"""The tree of a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

Range = tuple[int, int]  # of code points, both ends included
LAST: Range = (0, 0x10FFFF)


@dataclass(frozen=True, slots=True)
class Chars:
    """One character: one in `ranges` or `classes` (`d`, `W`, `p{L}`), or, if `negated`, one in neither."""

    ranges: tuple[Range, ...] = ()
    classes: tuple[str, ...] = ()
    negated: bool = False
    fold: bool = False  # upper and lower case are the same


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    low: int
    high: int | None


class Anchor(Enum):
    START = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Ahead:
    """A look-ahead: what follows begins with `item`."""

    item: Node


@dataclass(frozen=True, slots=True)
class Unsure:
    """A part that is not regular, or that we cannot write. `instead` matches at least the same texts."""

    instead: Node = Sequence()


Node = Chars | Sequence | Choice | Repeat | Anchor | Ahead | Unsure


def parts(node: Node) -> tuple[Node, ...]:
    """The parts of a node that consume text, which the contents of a look-ahead do not."""
    match node:
        case Sequence():
            return node.items
        case Choice():
            return node.options
        case Repeat():
            return (node.item,)
        case Unsure():
            return (node.instead,)
        case Chars() | Anchor() | Ahead():
            return ()


EMPTY = Sequence()
ANYTHING = Repeat(Chars(negated=True), 0, None)
