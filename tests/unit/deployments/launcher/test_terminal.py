"""Lines and what is being waited for: in a terminal, in a pipe, and where nobody reads any more."""

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
from serve_app.deployments.launcher.terminal import complain, restore, say, waiting
with waiting("loading the model"):
    time.sleep({pause})
    say("half of it")
    if {closes}:
        sys.stdin.readline()
    time.sleep({pause})
say("ready")
complain("a warning")
restore()
"""


def shown(pause: float, **environ: str) -> str:
    """What a terminal gets of PROGRAM."""
    own, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(pause=pause, closes=False)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env | environ,
    )
    os.close(theirs)
    text = b""
    try:
        while data := os.read(own, 65_536):
            text += data
    except OSError:  # the program has ended
        pass
    assert process.wait(60) == 0
    os.close(own)
    return text.decode()


def test_a_terminal_shows_what_is_waited_for_below_the_lines_and_is_left_as_it_was() -> None:
    text = shown(0.3)
    assert "loading the model" in text
    assert "0:00:00" in text
    assert text.index("loading the model") < text.index("serve: half of it")
    after = text.rpartition("loading the model")[2]
    assert "serve: ready" in after
    assert text.count("\x1b[?25l") <= text.count("\x1b[?25h")  # the cursor is shown again


def test_a_terminal_without_colours_gets_none() -> None:
    text = shown(0.2, NO_COLOR="1")
    assert "loading the model" in text
    assert "\x1b[3" not in text


@pytest.mark.parametrize("environ", [{}, {"TERM": "xterm"}])
def test_a_pipe_gets_the_lines_alone(environ: dict[str, str]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(pause=0, closes=False)],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=60,
    )
    assert (result.stdout, result.stderr) == ("serve: half of it\nserve: ready\n", "serve: a warning\n")


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    own, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(pause=0.2, closes=True)],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    text = b""
    while b"half of it" not in text:
        text += os.read(own, 65_536)
    os.close(own)
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.wait(60) == 0
