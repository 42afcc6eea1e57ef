"""`measure-accuracy`, on the demo model and on deploy files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from serve_app.cli.model_applications import BUILDER
from serve_app.models.catalogue import demo_folder

TEXT = "What is the capital of France?\nThe capital of France is Paris.\n" * 12
Invoke = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    (tmp_path / "text.txt").write_text(TEXT)

    def write(**models: dict[str, Any]) -> Path:
        applications = [
            {"name": name, "import_path": BUILDER, "args": {"name": "demo-chat", "device": "cpu", **args}}
            for name, args in models.items()
        ]
        (tmp_path / "a.yaml").write_text(yaml.safe_dump({"applications": applications}))
        return tmp_path / "a.yaml"

    return write


def test_each_quantised_model_is_measured_beside_its_original(
    invoke: Invoke, file: Callable[..., Path]
) -> None:
    path = file(
        a={"quantization": "int8"}, b={"quantization": "int4"}, c={"engine": {"kv_cache_dtype": "int8"}}, d={}
    )
    result = invoke("measure-accuracy", path, "--text", path.parent / "text.txt", "--window", "64", "--json")
    assert result.exit_code == 0, result.output
    assert "demo-chat is left out: it is not quantised" in result.stderr
    assert result.stderr.count("of log-probabilities of the reference go to a file") == 1  # one for all three
    found = json.loads(result.stdout)
    assert [(each["weights"], each["cache"]) for each in found] == [
        ("int8", "auto"),
        ("int4", "auto"),
        ("none", "int8"),
    ]
    int8, int4, cache = (each["mean_divergence"] for each in found)
    assert 0 < cache < int4
    assert 0 < int8 < int4
    for each in found:
        assert each["reference"] == "demo:demo-chat"
        assert each["mean_divergence"] < each["largest_divergence"]
        assert 0.9 < each["agreement"] <= 1
        assert each["perplexity"] == pytest.approx(each["reference_perplexity"], rel=0.1)
        assert each["perplexity"] != each["reference_perplexity"]


def test_a_table_names_the_reference_that_an_option_chose(invoke: Invoke, file: Callable[..., Path]) -> None:
    """A model beside itself, by another name, is itself."""
    path = file(a={}, b={"quantization": "int8"})
    options = ["--text", path.parent / "text.txt", "--tokens", "80", "--app", "a"]
    result = invoke("measure-accuracy", path, *options, "--reference", "demo:demo-chat")
    assert result.exit_code == 0, result.output
    head, row = result.stdout.splitlines()
    assert head.split() == [
        *("MODEL", "WEIGHTS", "CACHE", "REFERENCE", "MEAN", "KL", "LARGEST", "KL"),
        *("PERPLEXITY", "REFERENCE'S", "AGREEMENT"),
    ]
    assert re.match(r"demo-chat +none +auto +demo:demo-chat +0\.00000 +0\.000 +", row)
    assert row.endswith("100.00%")


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ({"a": {}}, [], "no model has quantised weights or a quantised cache"),
        ({"a": {}}, ["--app", "b"], "has no model application 'b'; it has: a"),
        ({"a": {"quantization": "int3"}}, [], "a: quantization:"),
        ({"a": {"quantization": "int8"}}, ["--reference", "demo:none"], "there is no demo model 'none'"),
        ({"a": {"quantization": "int8"}}, ["--reference", "demo:demo-embed"], "no causal language model"),
    ],
)
def test_what_cannot_be_measured_is_named(
    invoke: Invoke,
    file: Callable[..., Path],
    models: dict[str, dict[str, Any]],
    options: list[str],
    message: str,
) -> None:
    path = file(**models)
    result = invoke("measure-accuracy", path, "--text", path.parent / "text.txt", *options)
    assert result.exit_code != 0
    assert message in " ".join(result.stderr.split())


def test_a_reference_that_makes_other_tokens_is_refused(
    invoke: Invoke, file: Callable[..., Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(demo_folder("demo-chat"), other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps({**tokenizer, "normalizer": {"type": "Lowercase"}}))
    path = file(a={"quantization": "int8"})
    result = invoke("measure-accuracy", path, "--text", tmp_path / "text.txt", "--reference", other)
    assert result.exit_code == 1
    assert "they have different tokenizers, and cannot be compared" in " ".join(result.stderr.split())
