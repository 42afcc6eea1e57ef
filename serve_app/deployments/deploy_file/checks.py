"""Checks that the parts of a deploy file agree: routes, applications, endpoints, purchased throughput.

Works on parts that have passed their own schema, so that each mistake is reported once. Does not depend on
schemas or files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.control.endpoints.state import RUN_TIME
from serve_app.deployments import build
from serve_app.deployments.deploy_file.problem import Place, Problem
from serve_app.deployments.model.deployment import MODEL_CPUS
from serve_app.deployments.model.placement import CPU, GPU, bundles_of_ranks, wrong_gpus
from serve_app.endpoints.catalogue import Catalogue, judging, suggestion
from serve_app.endpoints.endpoint import Endpoint, Kind, ServedEntity
from serve_app.endpoints.rules import SYSTEM_APP
from serve_app.models.split.sizes import undivided

SYSTEM_PATH: Final = "serve_app.deployments.build:build_system_app"
MODEL_PATH: Final = "serve_app.deployments.build:build_model_app"
GATEWAY: Final = "Gateway"  # the deployment whose user_config has the endpoints
LIMITER: Final = "Limiter"  # counts for all gateways, so there is one
CONTROL: Final = "ControlPlane"  # alone opens the database, so there is one
MODEL: Final = "Model"
_ONCE: Final = {LIMITER: "counts for all gateways", CONTROL: "alone opens the database"}


@dataclass(frozen=True)
class App:
    """One application of a deploy file."""

    place: Place
    raw: Mapping[str, Any]
    builder: object  # what `import_path` names; None: nothing
    config: BaseModel | None  # its `args`; None: they are wrong, or of another builder

    @property
    def name(self) -> str:
        return str(self.raw.get("name", "default"))  # Serve's own default

    @property
    def route(self) -> Any:
        return self.raw.get("route_prefix", "/")  # Serve's own default

    @property
    def deployments(self) -> list[tuple[Place, Mapping[str, Any]]]:
        """The entries of `deployments`, each with its place."""
        entries = self.raw.get("deployments")
        return [
            (self.place.at("deployments", index).named("deployment", entry.get("name")), entry)
            for index, entry in enumerate(entries if isinstance(entries, list) else [])
            if isinstance(entry, Mapping)
        ]

    @property
    def is_gateway(self) -> bool:
        return self.builder is build.build_system_app

    @property
    def is_model(self) -> bool:
        return self.builder is build.build_model_app

    @property
    def built(self) -> tuple[str, ...]:
        """The names of the deployments that its builder makes; empty if the builder is not ours."""
        if self.is_gateway:
            is_on = not isinstance(self.config, GatewayConfig) or self.config.control.enabled
            return (GATEWAY, LIMITER, CONTROL) if is_on else (GATEWAY, LIMITER)
        return (MODEL,) if self.is_model else ()


def disagreements(apps: Sequence[App], catalogue: Catalogue | None, endpoints: Place) -> Iterator[Problem]:
    """All disagreements between parts of a file. `endpoints` is the place of the catalogue.

    If the catalogue is missing or wrong, the uses of applications are not checked.
    """
    yield from _names(apps)
    yield from _routes(apps)
    for app in apps:
        yield from _deployments(app)
        if isinstance(app.config, ModelConfig) and (found := undivided(app.config)):
            setting, reason = found
            yield app.place.at("args", setting).error(f"{reason}; choose another number")
    if catalogue is not None:
        yield from _entities(apps, catalogue, endpoints)
        for app in apps:
            if isinstance(app.config, GatewayConfig):
                yield from _judges(app, app.config, catalogue, endpoints)


def _names(apps: Sequence[App]) -> Iterator[Problem]:
    seen: set[str] = set()
    for app in apps:
        if app.name in seen:
            yield app.place.at("name").error("another application has this name; choose one of its own")
        seen.add(app.name)
        if app.builder is not None and not app.is_gateway and app.name == SYSTEM_APP:
            yield app.place.at("name").error(
                f"{SYSTEM_APP!r} is the gateway's; write another, such as `model-<the model's name>`"
            )
        if app.name.startswith(RUN_TIME):
            yield app.place.at("name").error(
                f"names with {RUN_TIME!r} are for endpoints made at run time; write another, such as "
                "`model-<the model's name>`"
            )


def _routes(apps: Sequence[App]) -> Iterator[Problem]:
    gateways = [app for app in apps if app.is_gateway]
    if not gateways and all(app.builder is not None for app in apps):
        yield Place(("applications",)).error(
            "no application is the gateway, so nothing answers HTTP; add one with "
            f"`name: {SYSTEM_APP}`, `route_prefix: /` and `import_path: {SYSTEM_PATH}`"
        )
    for app in gateways[1:]:
        yield app.place.error(
            f"a second gateway; a file has one: put all endpoints under {gateways[0].name!r} and remove this"
        )
    for app in apps:
        route = app.place.at("route_prefix")
        if app.is_gateway and not str(app.route or "").startswith("/"):
            yield route.error("the gateway needs a route; write `route_prefix: /`")
        if not app.is_gateway and app.builder is not None and app.route is not None:
            yield route.error(
                "only the gateway may have a route; write `route_prefix: null` (left out, it means `/`)"
            )


def _deployments(app: App) -> Iterator[Problem]:
    seen: set[str] = set()
    for place, raw in app.deployments:
        name = str(raw.get("name"))
        if app.built and name not in app.built:
            hint = suggestion(name, app.built)
            yield place.at("name").error(f"the application has no such deployment; {hint}")
        if name in seen:
            yield place.error("the deployment is there twice; write all of its settings under one `- name:`")
        seen.add(name)
        yield from _replicas(app, place, raw)
        yield from _ongoing(app, place, raw)
        yield from _gpus(app, place, raw)


def _replicas(app: App, place: Place, raw: Mapping[str, Any]) -> Iterator[Problem]:
    fixed, scaled = raw.get("num_replicas"), raw.get("autoscaling_config")
    if isinstance(fixed, int) and scaled is not None:
        yield place.at("num_replicas").error(
            "excludes autoscaling_config; keep num_replicas for a fixed number of replicas, or "
            "autoscaling_config with min_replicas and max_replicas"
        )
    if isinstance(app.config, ModelConfig) and app.config.provisioned is not None:
        for key in ("num_replicas", "autoscaling_config"):
            if raw.get(key) is not None:
                yield place.at(key).error(
                    "the number of replicas follows from `args.provisioned`; remove this, and set "
                    "min_throughput and max_throughput there"
                )
    if (
        app.is_gateway
        and (name := str(raw.get("name"))) in _ONCE
        and (fixed not in (None, 1) or scaled is not None)
    ):
        yield place.error(f"{_ONCE[name]}, so it runs once; remove num_replicas and autoscaling_config")


def _ongoing(app: App, place: Place, raw: Mapping[str, Any]) -> Iterator[Problem]:
    ongoing = raw.get("max_ongoing_requests")
    if not isinstance(ongoing, int):
        return
    here = place.at("max_ongoing_requests")
    if isinstance(app.config, ModelConfig):
        engine = app.config.engine
        takes = engine.max_sequences + engine.max_waiting
        if ongoing < takes:
            yield here.warning(
                f"{ongoing} is less than the engine takes ({engine.max_sequences} max_sequences + "
                f"{engine.max_waiting} max_waiting = {takes}), so its batches stay smaller; remove it, or "
                "lower those"
            )
    if isinstance(app.config, GatewayConfig) and raw.get("name") == GATEWAY:
        admits = app.config.max_in_flight
        if ongoing < admits:
            yield here.warning(
                f"{ongoing} is less than `args.max_in_flight` ({admits}), so Serve refuses what the gateway "
                "would take; remove it, or lower max_in_flight"
            )


def _gpus(app: App, place: Place, raw: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(app.config, ModelConfig):
        return
    listed = raw.get("placement_group_bundles")
    bundles = [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    spans = len(bundles) > 1
    options = raw.get("ray_actor_options")
    gpus = options.get("num_gpus") if isinstance(options, Mapping) else None
    here = place.at("ray_actor_options", "num_gpus")
    if spans:
        yield from _bundles(app.config, place.at("placement_group_bundles"), bundles, options)
    reserved = bundles[0].get(GPU) if bundles and not spans else None
    taken = gpus or 0 if spans else gpus
    if isinstance(taken, int | float) and (wrong := wrong_gpus(app.config, taken, bundles)):
        yield here.error(wrong)
    elif isinstance(reserved, int | float) and (wrong := wrong_gpus(app.config, reserved)):
        yield place.at("placement_group_bundles", 0, GPU).error(wrong)
    if app.config.device == "cuda" and not gpus and not spans:
        yield here.error(
            "`args.device` is cuda, and Ray shows a replica only GPUs it asks for; write `num_gpus: "
            f"{app.config.ranks}`"
        )
    if app.config.device == "cpu" and gpus:
        yield here.warning(
            "takes a GPU that `args.device: cpu` leaves idle; remove it, or write `device: cuda`"
        )


def _bundles(
    config: ModelConfig, here: Place, bundles: Sequence[Mapping[str, Any]], options: object
) -> Iterator[Problem]:
    """Several bundles, which are for the ranks of a model."""
    if config.ranks == 1:
        yield here.error(
            f"reserves {len(bundles)} bundles for a replica, which is one process in the first of them; "
            "remove it, and write num_cpus and num_gpus in ray_actor_options"
        )
        return
    try:
        bundles_of_ranks(config.ranks, bundles)
    except ValueError as error:
        yield here.error(str(error))
    if config.device == "cuda" and not any(bundle.get(GPU) for bundle in bundles):
        yield here.error("`args.device` is cuda, and no bundle has a GPU; write `GPU: 1` for each rank")
    own = options.get("num_cpus", 1) if isinstance(options, Mapping) else MODEL_CPUS
    if isinstance(own, int | float) and bundles[0].get(CPU, 0) < own:
        yield here.at(0, CPU).error(
            f"must be {own:g} or more: the first bundle has the replica's own process, with its num_cpus"
        )


def _entities(apps: Sequence[App], catalogue: Catalogue, endpoints: Place) -> Iterator[Problem]:
    models = {app.name: app for app in apps if not app.is_gateway}
    for index, endpoint in enumerate(catalogue.endpoints):
        for position, entity in enumerate(endpoint.served_entities):
            place = endpoints.at("endpoints", index, "served_entities", position)
            place = place.named("endpoint", endpoint.name).named("entity", entity.name)
            app = models.get(entity.app)
            if app is None:
                yield place.error(_missing(entity, list(models)))
            elif isinstance(app.config, ModelConfig):
                yield from _serves(app, app.config, entity, place)
                yield from _bought(app, app.config, endpoint, entity, place)
    used = set(catalogue.apps)
    for app in models.values():
        if app.is_model and app.name not in used:
            yield app.place.warning(
                "no endpoint uses this model, so HTTP clients cannot reach it; add it to an endpoint's "
                "served_entities, or remove it"
            )


def _judges(app: App, config: GatewayConfig, catalogue: Catalogue, endpoints: Place) -> Iterator[Problem]:
    """Unusable judges. If there is a control plane, a judge that the file lacks may still be added at run
    time."""
    known = {endpoint.name: endpoint for endpoint in catalogue.endpoints}
    named = [(app.place.at("args", "guardrails_model"), config.guardrails_model)]
    for index, endpoint in enumerate(catalogue.endpoints):
        if (guardrails := endpoint.ai_gateway.guardrails) is not None:
            place = endpoints.at("endpoints", index, "ai_gateway", "guardrails", "model")
            named.append((place.named("endpoint", endpoint.name), guardrails.model))
    for place, name in named:
        if name is None:
            continue
        try:
            judging(name, known.get(name))
        except ValueError as error:
            if name in known:
                yield place.error(str(error))
            elif config.control.enabled:
                yield place.warning(f"{error}, unless one is made at run time; {suggestion(name, known)}")
            else:
                yield place.error(f"{error}; {suggestion(name, known)}")


def _missing(entity: ServedEntity, models: Sequence[str]) -> str:
    args = f"name: {entity.model}" + (f", version: '{entity.version}'" if entity.version else "")
    hint = f"; {suggestion(entity.app, models)}" if models else ""
    return (
        f"its application {entity.app!r} is not in this file; set the entity's `app`, or add an application "
        f"with `name: {entity.app}`, `import_path: {MODEL_PATH}`, `route_prefix: null` and "
        f"`args: {{{args}}}`{hint}"
    )


def _serves(app: App, config: ModelConfig, entity: ServedEntity, place: Place) -> Iterator[Problem]:
    if (entity.model, entity.version) != (config.name, config.version):
        yield place.error(
            f"the application {app.name!r} serves {_model(config.name, config.version)}, not "
            f"{_model(entity.model, entity.version)}; name the application of that model in `app`, or write "
            f"the entity's `model` and `version` as its `args` say"
        )


def _bought(
    app: App, config: ModelConfig, endpoint: Endpoint, entity: ServedEntity, place: Place
) -> Iterator[Problem]:
    there = app.place.at("args", "provisioned")
    if endpoint.kind is not Kind.PROVISIONED:
        if config.provisioned is not None:
            yield there.error(
                f"the endpoint {endpoint.name!r} is paid per token; remove it, or write "
                f"`kind: {Kind.PROVISIONED.value}` and the entity's throughput in the endpoint"
            )
        return
    sold = (entity.min_provisioned_throughput or 0, entity.max_provisioned_throughput)
    words = f"min_throughput: {sold[0]}, max_throughput: {sold[1]}"
    if config.provisioned is None:
        yield there.error(
            f"the endpoint {endpoint.name!r} sells bought throughput; write "
            f"`provisioned: {{{words}, replica_throughput: ...}}`"
        )
    elif (config.provisioned.min_throughput, config.provisioned.max_throughput) != sold:
        yield there.error(
            f"the endpoint {endpoint.name!r} sells `{words}`, and this runs `min_throughput: "
            f"{config.provisioned.min_throughput:g}, max_throughput: {config.provisioned.max_throughput:g}`; "
            f"write the same in both"
        )


def _model(name: str, version: str) -> str:
    return f"{name!r} version {version}" if version else f"{name!r} without a version"
