"""Fixtures for all tests, and less work for pytest itself."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import re
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Final

import certifi
import pytest
from hypothesis import HealthCheck, settings

# The machine may stall in the middle of any example, and a run must not differ from the one before it.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("few", parent=settings.get_profile("tests"), max_examples=10)  # for `make test`
settings.load_profile("tests")
# Helpers too: an assertion of theirs that fails shows its values.
pytest.register_assert_rewrite(*(f"tests.{each.name}" for each in Path(__file__).parent.iterdir()))

pytest_plugins = (
    "tests.support.combinations",
    "tests.support.databases",
    "tests.support.ray_cluster",
    "tests.support.served",
    "tests.support.several_ranks",
    "tests.support.skipped",
    "tests.support.tiny_fixtures",
)


_END: Final = "-----END CERTIFICATE-----\n"


def pytest_configure(config: pytest.Config) -> None:
    if "not full" in str(config.option.markexpr):
        settings.load_profile("few")
    if not config.getoption("base_url", None):
        _trust_one_authority()


def _trust_one_authority() -> None:
    """A client of HTTP reads all authorities, which takes longer than most tests. These ask loopback."""
    first, end, _ = certifi.contents().partition(_END)
    file, path = tempfile.mkstemp(suffix=".pem")
    with os.fdopen(file, "w") as authority:
        authority.write(first + end)
    atexit.register(Path(path).unlink, missing_ok=True)
    os.environ["SSL_CERT_FILE"] = path


# All tests of such a file need Ray.
_RAY_ALONE: Final = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.ray\b", re.M)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A part of the tests does not import the files of the others, which would take it seconds."""
    chosen = str(config.option.markexpr)
    if not (chosen.startswith(("ray", "not ray")) and collection_path.match("test_*.py")):
        return None
    source = collection_path.read_text("utf-8")
    other = "mark.ray" not in source if chosen.startswith("ray") else _RAY_ALONE.search(source) is not None
    return other or None  # others may know reasons too


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and items live to the end: looking at each of them again and again is a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # garbage too: a search of this heap takes longer than it is worth
        gc.set_threshold(10_000, 20, 20)  # what tests leave in cycles is small, and looking for it is not
        gc.enable()
        _join_loggers()


def _join_loggers() -> None:
    """pytest adds its handlers to each logger that does not propagate, for each phase of each test.

    torch has more than fifty of those, a millisecond a test.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True
