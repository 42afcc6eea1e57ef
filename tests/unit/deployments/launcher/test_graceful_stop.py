"""What is said while gateways finish their answers; that they do is shown by the deploy tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.deployments.launcher import graceful_stop as module
from serve_app.deployments.launcher.graceful_stop import finish

BUSY = None  # a gateway that does not reply in time


def said(
    replies: list[int | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    grace_s: float = 60.0,
) -> tuple[list[str], str | None]:
    """The lines, and what was cut, where gateways reply so; the last reply stays."""
    waiting = [*replies]

    def ask(folder: Path, word: bytes, timeout_s: float) -> int:
        reply = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if reply is BUSY:
            raise TimeoutError
        return reply

    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(module, "POLL_S", 0.001)
    monkeypatch.setattr(module, "SAY_S", 0.0)
    cut = finish(tmp_path, (), grace_s)
    return capsys.readouterr().out.splitlines(), cut


@pytest.mark.parametrize(
    ("replies", "lines"),
    [
        ([0], []),
        ([2, 2, 1, 0], ["finishing 2 answers; Ctrl-C again stops at once", "1 answer left"]),
        ([BUSY, 0], ["finishing answers; Ctrl-C again stops at once"]),
        ([BUSY, 3, BUSY, 3, 0], ["finishing answers; Ctrl-C again stops at once", "3 answers left"]),
    ],
    ids=["none", "fewer", "too-busy-to-count", "counted-late"],
)
def test_a_user_is_told_that_answers_are_finished(
    replies: list[int | None],
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, cut = said(replies, tmp_path, monkeypatch, capsys)
    assert found == [f"serve: {line}" for line in lines]
    assert cut is None


def test_what_is_not_done_within_the_grace_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, cut = said([1], tmp_path, monkeypatch, capsys, grace_s=0.05)
    assert cut == "1 answer cut: not done within the grace of 0.05 s (--grace)"
