"""Commands that take a deploy file: validate, serve."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_a_good_file_passes(invoke):
    file = DEPLOY / "local.yaml"
    result = invoke("validate", file)
    assert (result.exit_code, result.output) == (0, f"{file}: ok\n")


def test_every_problem_is_a_line_that_names_file_and_field(invoke, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text((DEPLOY / "local.yaml").read_text().replace("dtype: float32", "dtipe: float32"))
    result = invoke("validate", DEPLOY / "local.yaml", bad)
    assert result.exit_code == 1
    lines = [line for line in result.output.splitlines() if line.startswith(str(bad))]
    assert len(lines) == 1
    number = next(i for i, line in enumerate(bad.read_text().splitlines()) if "dtipe" in line)
    assert lines[0].startswith(f"{bad}:{number + 1}: error: ")
    assert "args.dtipe" in lines[0]
    assert "'dtype'" in lines[0]


def test_a_file_that_is_no_text_is_refused(invoke, tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    result = invoke("validate", tmp_path / "a.yaml")
    assert result.exit_code == 1
    assert "UTF-8" in result.stderr


@pytest.mark.parametrize("command", ["validate", "serve"])
def test_a_missing_file_is_named(invoke, command):
    result = invoke(command, "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml" in result.stderr


def test_serve_without_a_file_names_one_to_begin_with(invoke):
    result = invoke("serve")
    assert result.exit_code == 2
    assert "deploy/local.yaml" in result.stderr


def test_serve_is_the_launcher(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = tmp_path / "a.yaml"
        file.write_text((DEPLOY / "local.yaml").read_text().replace("port: 8000", f"port: {port}"))
        # A process of its own: the launcher sets Ray's environment for good.
        result = subprocess.run(
            [sys.executable, "-m", "serve_app.cli", "serve", file, "--no-haproxy"],
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert result.returncode == 1
    assert f"127.0.0.1:{port} cannot be used" in result.stderr
