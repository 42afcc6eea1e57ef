"""In which order servers take their turns, and what of it is left to do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple


class Turn(NamedTuple):
    """One start of one server: the mixes that it runs with one model in one round."""

    round: int
    model: str
    server: str
    mixes: tuple[str, ...]


class Batch(NamedTuple):
    """One mix of one turn."""

    round: int
    model: str
    server: str
    mix: str


def rotated(servers: Sequence[str], turn: int) -> list[str]:
    """`servers`, with another one first each turn and the direction changed after each full circle.

    Over twice as many turns as servers each one has had every place equally often, and each pair of
    neighbours has stood in both orders.
    """
    if not servers:
        return []
    circles, first = divmod(turn, len(servers))
    order = [*servers[first:], *servers[:first]]
    return order[::-1] if circles % 2 else order


def turns(
    rounds: int, models: Sequence[str], servers: Sequence[str], mixes: Sequence[str], done: Collection[Batch]
) -> Iterator[Turn]:
    """All turns with a batch that is not among `done`, with those batches alone."""
    for number in range(rounds):
        for model in models:
            for server in rotated(servers, number):
                left = tuple(mix for mix in mixes if Batch(number, model, server, mix) not in done)
                if left:
                    yield Turn(number, model, server, left)
