"""`measure-throughput`, on the demo model and on deploy files."""

import re

import pytest
import yaml

from serve_app.cli.model_applications import BUILDER
from serve_app.deployments.deploy_file.checks import MODEL_PATH

ENGINE = {"max_sequences": 2, "num_blocks": 32, "max_model_len": 128}
QUICK = ["--seconds", "0.2", "--rounds", "2", "--input-tokens", "16", "--output-tokens", "8"]


def deploy(*apps):
    return yaml.safe_dump(
        {
            "applications": [
                {"name": "system", "import_path": "serve_app.deployments.build:build_system_app"},
                *({"name": name, "import_path": BUILDER, "args": args} for name, args in apps),
            ]
        }
    )


def model(**args):
    return {"name": "demo-chat", "dtype": "float32", "threads": 1, "engine": ENGINE, **args}


def test_a_model_application_is_the_builders():
    assert BUILDER == MODEL_PATH


def test_the_figure_is_printed_as_the_line_to_paste(invoke, tmp_path):
    file = tmp_path / "a.yaml"
    # What is to be found out need not be written down before.
    file.write_text(deploy(("a", {"name": "broken"}), ("b", model(provisioned={"max_throughput": 1}))))
    result = invoke("measure-throughput", file, "--app", "b", *QUICK)
    assert result.exit_code == 0, result.output
    assert "demo-chat: 16 tokens in, 8 out, 2 at a time, median of 2 rounds" in result.stdout
    assert "round 2 of 2" in result.stderr
    pasted = yaml.safe_load(result.stdout.splitlines()[-1])
    shown = re.search(r"input and output +([\d,.]+) tokens/s", result.stdout)
    assert shown is not None
    assert 0.98 < pasted["replica_throughput"] / float(shown[1].replace(",", "")) <= 1.01


@pytest.mark.parametrize(
    ("text", "options", "hint"),
    [
        (deploy(("a", model()), ("b", model())), [], "--app: a, b"),
        (deploy(("a", model())), ["--app", "z"], "it has: a"),
        (deploy(), [], "no model application"),
        (deploy(("a", model(dtype="float99"))), [], "a: dtype"),
        (deploy(("a", model(name="no-such"))), [], "no demo model 'no-such'"),
        (deploy(("a", model())), ["--input-tokens", "127"], "context window of 128"),
        ("applications: [", [], "YAML"),
        ("[]", [], "no model application"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_reason(invoke, tmp_path, text, options, hint):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    result = invoke("measure-throughput", file, *options)
    assert result.exit_code in (1, 2)
    assert hint in result.stderr


def test_a_model_may_be_named_without_a_file(invoke, tmp_path):
    unknown = invoke("measure-throughput", "no-such-demo")
    assert unknown.exit_code == 1
    assert "demo-chat" in unknown.stderr
    empty = invoke("measure-throughput", tmp_path)
    assert empty.exit_code == 1
    assert str(tmp_path) in empty.stderr
    assert invoke("measure-throughput", "demo-chat", "--app", "a").exit_code == 2
