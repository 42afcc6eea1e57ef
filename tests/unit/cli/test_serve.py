"""What the command that serves looks at before it starts anything."""

import pytest


@pytest.mark.parametrize("value", ["-1", "soon", "nan", "86401"])
def test_a_grace_that_is_no_time_is_refused(invoke, tmp_path, value):
    file = tmp_path / "a.yaml"
    file.touch()
    result = invoke("serve", file, "--grace", value)
    assert result.exit_code == 2
    assert "--grace" in result.stderr


def test_a_system_without_what_the_launcher_needs_is_told_so(invoke, tmp_path, monkeypatch):
    file = tmp_path / "a.yaml"
    file.touch()
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    result = invoke("serve", file)
    assert result.exit_code == 1
    assert "serving needs Linux" in result.stderr
    assert "this is Darwin" in result.stderr
