"""Checks whole deploy files without starting Ray: reports every problem, and says what to write instead.

Covered: YAML (including duplicate keys), Ray's schema of a deploy file, keys that Ray would silently ignore,
import paths, `args` against the builder's own config class, the endpoints, and whether all of these agree.
Not covered: whether weights, key files and machines exist, and whether the machines suffice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ray.serve.schema import ServeApplicationSchema, ServeDeploySchema

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.deployments.deploy_file import yaml as deploy_yaml
from serve_app.deployments.deploy_file.checks import GATEWAY, MODEL_PATH, SYSTEM_PATH, App, disagreements
from serve_app.deployments.deploy_file.example import example
from serve_app.deployments.deploy_file.problem import Place, Problem, Severity
from serve_app.deployments.deploy_file.schema import (
    config_of,
    imported,
    unknown_keys,
    wrong_scaling,
    wrong_values,
)
from serve_app.endpoints.catalogue import Catalogue, CatalogueError, check_judges, parse_catalogue

DEFAULT_PORT: Final = 8000  # Serve's
MOST_PORT: Final = 65_535


class DeployFileError(ValueError):
    """The file must not be deployed; the message gives all `problems`, one line each."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems

    def __reduce__(self) -> tuple[type[DeployFileError], tuple[list[Problem]]]:
        return DeployFileError, (self.problems,)


@dataclass(frozen=True)
class DeployFile:
    """A deploy file without errors."""

    raw: dict[str, Any]  # as Ray takes it
    gateway: GatewayConfig
    catalogue: Catalogue
    models: Mapping[str, ModelConfig]  # by the name of the application
    warnings: tuple[Problem, ...] = ()


def load(path: Path) -> DeployFile:
    """The deploy file at `path`. Raises DeployFileError with every problem."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeployFileError([Place().error(f"cannot be read: {error}")]) from error
    return parse(text)


def parse(text: str) -> DeployFile:
    """The deploy file with this text. Raises DeployFileError with every problem."""
    document = deploy_yaml.read(text)
    checked = None if document.problems else _Check(document.values)
    found = [document.located(problem) for problem in (checked or document).problems]
    if checked is None or checked.gateway is None or any(p.severity is Severity.ERROR for p in found):
        raise DeployFileError(found)
    return DeployFile(
        raw=document.values,
        gateway=checked.gateway,
        catalogue=checked.catalogue or Catalogue(),
        models={app.name: app.config for app in checked.apps if isinstance(app.config, ModelConfig)},
        warnings=tuple(found),
    )


def problems(source: str | Mapping[str, Any]) -> list[Problem]:
    """Every problem of a deploy file, given as YAML or as plain values. Never raises."""
    if not isinstance(source, str):
        return _Check(source).problems
    document = deploy_yaml.read(source)
    found = document.problems or _Check(document.values).problems
    return [document.located(problem) for problem in found]


class _Check:
    """One pass over a file: checks each part against its schema, then the parts against each other."""

    def __init__(self, raw: object) -> None:
        self.apps: list[App] = []
        self.catalogue: Catalogue | None = None
        self._endpoints = Place()
        self.problems = list(self._file(raw))
        if isinstance(raw, Mapping) and not any(p.severity is Severity.ERROR for p in self.problems):
            self.problems += wrong_values(raw, ServeDeploySchema, Place())  # nothing that Ray would refuse

    @property
    def gateway(self) -> GatewayConfig | None:
        return next((app.config for app in self.apps if isinstance(app.config, GatewayConfig)), None)

    def _file(self, raw: object) -> Iterator[Problem]:
        yield from unknown_keys(raw, ServeDeploySchema, Place())
        if not isinstance(raw, Mapping):
            return
        applications = raw.get("applications")
        if not isinstance(applications, list) or not applications:
            yield Place(("applications",)).error(f"has no application; {example()} is an example")
            return
        yield from wrong_values({**raw, "applications": []}, ServeDeploySchema, Place())
        options = raw.get("http_options")
        if not isinstance(options, Mapping) or options.get("host") is None:
            yield Place(("http_options", "host")).error(
                "must be set, because Serve's default is every interface; write `host: 127.0.0.1` for this "
                "machine alone, or `host: 0.0.0.0` for the network, with API keys"
            )
        port = _http_port(options)
        if port is not None and not 1 <= port <= MOST_PORT:
            yield Place(("http_options", "port")).error(f"must be from 1 to {MOST_PORT}; it is {port}")
        for index, each in enumerate(applications):
            if isinstance(each, Mapping):
                place = Place(("applications", index)).named("application", each.get("name"))
                yield from self._application(each, place)
                config = self.apps[-1].config
                if isinstance(config, GatewayConfig) and port is not None and config.grpc_port == port:
                    yield place.at("args", "grpc_port").error(
                        f"HTTP listens at {port} already; write another"
                    )
        yield from disagreements(self.apps, self.catalogue, self._endpoints)

    def _application(self, raw: Mapping[str, Any], place: Place) -> Iterator[Problem]:
        for key in ("host", "port"):
            if key in raw:
                yield place.at(key).error(f"belongs to the whole file; write it as http_options.{key}")
        yield from wrong_values(_without_scaling(raw), ServeApplicationSchema, place)
        path = raw.get("import_path")
        builder = None
        if path is not None:  # a missing one was said by Ray's schema
            builder, found = imported(path, place.at("import_path"), (SYSTEM_PATH, MODEL_PATH))
            yield from found
        app = App(place, raw, builder, None)
        schema = config_of(builder)
        if schema is not None:
            args = raw.get("args") or {}
            wrong = list(unknown_keys(args, schema, place.at("args")))
            if isinstance(args, Mapping):
                wrong += wrong_values(args, schema, place.at("args"))
            yield from wrong
            app = App(place, raw, builder, None if wrong else schema.model_validate(args))
        self.apps.append(app)
        for here, deployment in app.deployments:
            if deployment.get("autoscaling_config") is not None:
                yield from wrong_scaling(deployment["autoscaling_config"], here.at("autoscaling_config"))
        if app.is_gateway and self.catalogue is None:
            yield from self._gateway(app)

    def _gateway(self, app: App) -> Iterator[Problem]:
        entries = [(here, raw) for here, raw in app.deployments if raw.get("name") == GATEWAY]
        here, raw = entries[0] if entries else (app.place.at("deployments"), {})
        config = raw.get("user_config")
        if not config:
            yield here.warning(
                "no endpoints, so no model can be called; write a deployment `name: Gateway` with "
                "`user_config: {endpoints: [{name: ...}]}`"
            )
            return
        self._endpoints = here.at("user_config")
        if not isinstance(config, Mapping):
            return  # said by Ray's schema
        try:
            self.catalogue = parse_catalogue(config)
            if isinstance(app.config, GatewayConfig):
                check_judges(self.catalogue, app.config.guardrails_model)
        except CatalogueError as error:
            yield from (self._endpoints.error(problem) for problem in error.problems)


def _http_port(options: object) -> int | None:
    """The file's HTTP port, or the default; None if Ray's schema refuses it."""
    raw = options.get("port", DEFAULT_PORT) if isinstance(options, Mapping) else DEFAULT_PORT
    try:
        return int(raw)
    except (TypeError, ValueError, OverflowError):
        return None


def _without_scaling(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """An application without its autoscaling_configs, for which we report problems in messages of our own."""
    entries = raw.get("deployments")
    if not isinstance(entries, list):
        return raw
    return {
        **raw,
        "deployments": [
            {key: value for key, value in entry.items() if key != "autoscaling_config"}
            if isinstance(entry, Mapping)
            else entry
            for entry in entries
        ],
    }
