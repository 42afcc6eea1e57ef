"""`make test` takes a few cases of each test with parameters; all of them are for `make test-all`.

Of a test with several `parametrize` marks, so few combinations stay that each value is in one of them, and of
any test at most `MOST` cases, evenly spread; the others are marked `full`. They stay for each value of a
fixture with parameters, as such values are skipped on some machines. Where each case must hold at all times,
as for a closed door, a test is marked `all_combinations`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Final

import pytest

ALL: Final = "all_combinations"
MOST: Final = 3
Parts = frozenset[Hashable]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{ALL}: each combination of parameters runs in `make test`")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_test: dict[Hashable, list[tuple[pytest.Item, Parts]]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in (ALL, "full", "ray", "gpu", "skip")):
            parts, of_fixtures = _parts(item)
            if parts:
                by_test[item.nodeid.partition("[")[0], of_fixtures].append((item, parts))
    for cases in by_test.values():
        kept = {id(item) for item in _spread(_chosen(cases))}
        for item, _ in cases:
            if id(item) not in kept:
                item.add_marker(pytest.mark.full)


def _spread(items: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    """At most MOST of them, the first and the last among them."""
    last = len(items) - 1
    return items if last < MOST else [items[i * last // (MOST - 1)] for i in range(MOST)]


def _parts(item: pytest.Item) -> tuple[Parts, Parts]:
    """The values of each `parametrize` mark, and those of fixtures."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return frozenset(), frozenset()
    rest = {name: id(value) for name, value in callspec.params.items()}  # the same object in each combination
    marks = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        marks.append((*names, *(rest.pop(name, None) for name in names)))
    return frozenset(marks), frozenset(rest.items())


def _chosen(combinations: Sequence[tuple[pytest.Item, Parts]]) -> list[pytest.Item]:
    """Few of them that have every value: always the next that has the most new ones.

    All of a test with one mark.
    """
    if len(combinations[0][1]) == 1:
        return [item for item, _ in combinations]
    missing = set().union(*(parts for _, parts in combinations))
    found = []
    for wanted in range(len(combinations[0][1]), 0, -1):
        for item, parts in combinations:
            if len(parts & missing) >= wanted:
                found.append(item)
                missing -= parts
    return found
