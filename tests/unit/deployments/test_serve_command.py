import socket
from pathlib import Path

import pytest

from serve_app.deployments import serve
from serve_app.deployments.environment import free_port

FILE = """
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
- {{name: system, import_path: "serve_app.deployments.build:build_system_app"}}
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "STATE", tmp_path / "state")


def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(FILE.format(port=port))
        assert serve.main([str(file)]) == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in said
    assert "http_options.port" in said


def test_a_port_of_grpc_in_use_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = FILE.format(port=free_port()).rstrip().removesuffix("}")
        file.write_text(f"{text}, args: {{grpc_port: {port}}}}}\n")
        assert serve.main([str(file)]) == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in said
    assert "args.grpc_port" in said


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("applications: [{name: a}]", "http_options.host"),
        ("http_options: {host: 127.0.0.1}", "deploy/local.yaml"),
        ("applications: [", "is no YAML"),
    ],
)
def test_a_deploy_file_that_cannot_serve_is_refused_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, hint: str
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    assert serve.main([str(file)]) == 1
    assert hint in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main([str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml" in capsys.readouterr().err
