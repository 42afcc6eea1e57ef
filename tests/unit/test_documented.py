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
README = (ROOT / "README.md").read_text("utf-8")

MODELS = [config.EngineConfig, config.ModelConfig, config.GatewayConfig]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_every_setting_says_what_it_is(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        choices = "Literal" in str(field.annotation)
        nested = isinstance(field.default, BaseModel)
        assert field.description or choices or nested or name == "name", name


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
    metrics.journal(waiting=lambda: 0, dropped=lambda: 0)
    names = {family.name for family in metrics.registry.collect()}
    missing = sorted(name for name in names if name not in OPERATIONS)
    assert not missing


def test_every_error_class_stands_in_the_tree() -> None:
    tree = ast.get_docstring(ast.parse(Path(errors.__file__).read_text("utf-8"))) or ""
    assert [name for name in errors.KINDS if name not in tree] == []


def test_the_readme_names_every_package() -> None:
    package = ROOT / "serve_app"
    names = [p.name for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()]
    assert [name for name in names if f"serve_app/{name}/" not in README] == []
    files = [p.name for p in package.glob("*.py") if p.name != "__init__.py"]
    assert [name for name in files if name not in README] == []


@pytest.mark.parametrize(
    "document", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text("utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target
