"""pytest's option `--tensor-parallel N`: suites of engines run once more, on models that N ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_chosen = [1]


def ranks() -> int:
    """How many ranks share the model of an engine."""
    return _chosen[-1]


@contextmanager
def divided_among(count: int) -> Iterator[None]:
    """Engines that are made in this block have so many ranks."""
    _chosen.append(count)
    try:
        yield
    finally:
        _chosen.pop()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tensor-parallel",
        type=int,
        default=1,
        help="ranks of engines in tests/invariance, and of replicas in tests/faults/pair",
    )


def pytest_configure(config: pytest.Config) -> None:
    _chosen[:] = [config.option.tensor_parallel]
