"""Fixtures for all tests, and less work for pytest itself."""

from __future__ import annotations

import gc
import logging
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The machine may stall in the middle of any example, and a run must not differ from the one before it.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
# Helpers too: an assertion of theirs that fails shows its values.
pytest.register_assert_rewrite(*(f"tests.{each.name}" for each in Path(__file__).parent.iterdir()))

pytest_plugins = (
    "tests.support.databases",
    "tests.support.ray_cluster",
    "tests.support.served",
    "tests.support.tiny_fixtures",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and items live to the end: looking at each of them again and again is a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        _join_loggers()


def _join_loggers() -> None:
    """pytest adds its handlers to each logger that does not propagate, for each phase of each test.

    torch has more than fifty of those, a millisecond a test.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True
