"""What a user can set or see is written down."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from serve_app import config, errors, limits
from serve_app.endpoints import ai_gateway, catalogue, endpoint
from serve_app.telemetry import Metrics
from serve_app.telemetry.metrics import COUNTED, READ
from serve_app.types import EngineStats

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")

SETTINGS = [
    value
    for module in (config, ai_gateway, endpoint, catalogue)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel)
]
MODELS = list(dict.fromkeys(SETTINGS))


def is_group(annotation: object) -> bool:
    """Whether a field holds settings that are described one by one; such a field may be null."""
    kinds = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
    return any(issubclass(each, config.ConfigModel) for each in kinds if each is not type(None))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_setting_says_what_it_is(model: type[BaseModel]) -> None:
    """But a group of settings, each of which says it."""
    for name, field in model.model_fields.items():
        assert field.description or is_group(field.annotation), name


def test_the_settings_of_endpoints_are_among_them() -> None:
    names = {model.__name__ for model in MODELS}
    assert names >= {
        "GatewayConfig",
        "Endpoint",
        "ServedEntity",
        "Limits",
        "Price",
        "AiGateway",
        "RateLimit",
        "Shadow",
    }


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
    metrics.watch(**dict.fromkeys((*READ, *COUNTED), lambda: 0))
    names = {family.name for family in metrics.registry.collect()}
    missing = sorted(name for name in names if name not in OPERATIONS)
    assert not missing


def test_every_error_class_stands_in_the_tree() -> None:
    tree = ast.get_docstring(ast.parse(Path(errors.__file__).read_text("utf-8"))) or ""
    assert [name for name in errors.KINDS if name not in tree] == []
