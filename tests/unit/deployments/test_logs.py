"""The package's log lines: JSON, beside Serve's own."""

import json
import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

import pytest

from serve_app.deployments.logs import PACKAGE, PREFIX, SERVE, log_as_json, warnings_shown
from serve_app.telemetry import log_request


@pytest.fixture
def loggers() -> Iterator[tuple[logging.Logger, logging.Logger]]:
    """(the package's, Serve's), as they were before afterwards."""
    both = logging.getLogger(PACKAGE), logging.getLogger(SERVE)
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in both]
    yield both
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_lines_go_to_a_file_beside_serves(
    tmp_path: Path, loggers: tuple[logging.Logger, logging.Logger]
) -> None:
    serve = RotatingFileHandler(tmp_path / "replica_x.log", maxBytes=1_000, backupCount=2)
    loggers[1].handlers[:] = [MemoryHandler(1, target=serve)]
    log_as_json()
    log_as_json()
    log_request(logging.getLogger("serve_app.api.edge.middleware"), request_id="r1", status=200)
    lines = (tmp_path / f"{PREFIX}replica_x.log").read_text().splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["r1"]
    (handler,) = loggers[0].handlers
    assert isinstance(handler, RotatingFileHandler)
    assert (handler.maxBytes, handler.backupCount) == (1_000, 2)


def test_without_serve_they_go_to_standard_error(
    capsys: pytest.CaptureFixture[str], loggers: tuple[logging.Logger, logging.Logger]
) -> None:
    loggers[1].handlers[:] = []
    log_as_json()
    logging.getLogger("serve_app.x").warning("hello\nthere")
    assert json.loads(capsys.readouterr().err)["message"] == "hello\nthere"


def test_warnings_of_a_start_are_shown_and_those_after_it_are_not() -> None:
    shown: list[str] = []
    log = logging.getLogger("serve_app.engine.kernels")
    with warnings_shown(shown.append):
        log.info("loading")
        log.warning("no native CPU kernels: %s", "no C++ compiler found")
    log.warning("later")
    assert shown == ["no native CPU kernels: no C++ compiler found"]
