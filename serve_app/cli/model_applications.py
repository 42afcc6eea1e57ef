"""The model applications of a deploy file, as commands that run a model in their own process need them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from pydantic import ValidationError

from serve_app.cli.options import read_text
from serve_app.config import ModelConfig, first_problem
from serve_app.deployments.deploy_file import yaml as deploy_yaml

BUILDER: Final = "serve_app.deployments.build:build_model_app"


def model_applications(path: Path) -> dict[str, dict[str, Any]]:
    """The `args` of each model application of the file `path`, by its name.

    Raises ClickException if the file cannot be read or has none.
    """
    document = deploy_yaml.read(read_text(path))
    if document.problems:
        raise click.ClickException(document.problems[0].of(path))
    loaded = document.values
    applications = loaded.get("applications") if isinstance(loaded, dict) else None
    models: dict[str, dict[str, Any]] = {
        str(each.get("name")): dict(each.get("args") or {})
        for each in applications or ()
        if isinstance(each, dict) and each.get("import_path") == BUILDER
    }
    if not models:
        raise click.ClickException(f"{path} has no model application (import_path: {BUILDER})")
    return models


def model_config(path: Path, name: str, args: Mapping[str, Any]) -> ModelConfig:
    """The settings of one of them. Raises ClickException with the field that is wrong."""
    try:
        return ModelConfig.model_validate(args)
    except ValidationError as error:
        field, problem = first_problem(error)
        raise click.ClickException(f"{path}: {name}: {field}: {problem}") from error
