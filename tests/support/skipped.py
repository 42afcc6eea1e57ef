"""How many tests were skipped, and why: kept by each part of `make test`, said in its last line.

python -m tests.support.skipped build/tests/test-unit build/tests/test-ray ...
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

KEY: Final = "skipped"  # in pytest's cache
_PREFIX: Final = "Skipped: "
SHOWN: Final = 5  # reasons


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Keep the reasons of skipped tests, unless those that failed run once more."""
    cache: pytest.Cache | None = getattr(config, "cache", None)  # absent with `-p no:cacheprovider`
    if cache is not None and not config.getoption("lf"):
        cache.set(KEY, _reasons(terminalreporter.stats.get("skipped", [])))


def _reasons(reports: Iterable[pytest.TestReport]) -> Counter[str]:
    """The reasons of skipped tests, each with its count."""
    return Counter(
        report.longrepr[2].removeprefix(_PREFIX) for report in reports if isinstance(report.longrepr, tuple)
    )


def line(counts: Counter[str]) -> str:
    """One line for people: the number of skipped tests and the most common reasons.

    >>> line(Counter({"no GPU": 3, "no kubectl": 1}))
    '4 tests were skipped: 3 (no GPU), 1 (no kubectl)'
    >>> line(Counter())
    'no test was skipped'
    """
    if not counts:
        return "no test was skipped"
    shown = [f"{count} ({reason})" for reason, count in counts.most_common(SHOWN)]
    rest = counts.total() - sum(count for _, count in counts.most_common(SHOWN))
    if rest:
        shown.append(f"{rest} (other reasons: add -rs to PYTEST_FLAGS)")
    return f"{counts.total()} tests were skipped: {', '.join(shown)}"


def main(caches: Iterable[str]) -> None:
    """Print the line for the parts whose caches are named."""
    counts: Counter[str] = Counter()
    for cache in caches:
        counts.update(json.loads((Path(cache) / "v" / KEY).read_text()))
    print(line(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
