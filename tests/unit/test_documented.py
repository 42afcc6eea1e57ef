"""What a user can set or see is written down."""

import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from serve_app import config, errors, limits
from serve_app.telemetry import Metrics
from serve_app.types import EngineStats

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")

MODELS = [
    value
    for value in map(vars(config).get, config.__all__)
    if isinstance(value, type) and issubclass(value, BaseModel)
]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_setting_says_what_it_is(model: type[BaseModel]) -> None:
    """But a group of settings, each of which says it."""
    for name, field in model.model_fields.items():
        is_group = isinstance(field.annotation, type) and issubclass(field.annotation, config.ConfigModel)
        assert field.description or is_group, name


def test_every_limit_has_its_reason_beside_it() -> None:
    bounds = [
        line
        for line in Path(limits.__file__).read_text("utf-8").splitlines()
        if re.match(r"[A-Z_]+: Final", line)
    ]
    assert bounds
    assert [line for line in bounds if "  # " not in line] == []


def test_every_metric_is_listed_for_operators() -> None:
    metrics = Metrics(lambda: {"model": EngineStats()})
    metrics.migrations(lambda: {("model", "killed"): 1})
    metrics.journal(waiting=lambda: 0, dropped=lambda: 0)
    metrics.payloads(waiting=lambda: 0, dropped=lambda: 0)
    metrics.catalogue_refused(lambda: False)
    metrics.keys(is_refused=lambda: False, bad=lambda: 0)
    metrics.endpoints_waiting(lambda: 0)
    metrics.snapshot_age(lambda: 0.0)
    metrics.unshipped(lambda: 0)
    names = {family.name for family in metrics.registry.collect()}
    missing = sorted(name for name in names if name not in OPERATIONS)
    assert not missing


def test_every_error_class_stands_in_the_tree() -> None:
    tree = ast.get_docstring(ast.parse(Path(errors.__file__).read_text("utf-8"))) or ""
    assert [name for name in errors.KINDS if name not in tree] == []
