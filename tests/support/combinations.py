"""`make test` takes each value of each parameter of a test; all combinations of them are for `make test-all`.

Of a test with several `parametrize` marks, so few combinations stay that each value is in one of them; the
others are marked `full`. They stay for each value of a fixture with parameters, as such values are skipped on
some machines. Where each combination is a behaviour of its own, a test is marked `all_combinations`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Final

import pytest

ALL: Final = "all_combinations"
Parts = frozenset[Hashable]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{ALL}: each combination of parameters runs in `make test`")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    by_test: dict[Hashable, list[tuple[pytest.Item, Parts]]] = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(name) for name in (ALL, "full", "ray", "gpu", "skip")):
            parts, of_fixtures = _parts(item)
            if len(parts) > 1:
                by_test[item.nodeid.partition("[")[0], of_fixtures].append((item, parts))
    for combinations in by_test.values():
        kept = {id(item) for item in _chosen(combinations)}
        for item, _ in combinations:
            if id(item) not in kept:
                item.add_marker(pytest.mark.full)


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
    """Few of them that have every value: always the next that has the most new ones."""
    missing = set().union(*(parts for _, parts in combinations))
    found = []
    for wanted in range(len(combinations[0][1]), 0, -1):
        for item, parts in combinations:
            if len(parts & missing) >= wanted:
                found.append(item)
                missing -= parts
    return found
