"""The steps from the applications that run to those of a deploy file. Pure logic: no Ray, no waiting.

Left alone, Serve applies a whole file at once: gateways then send requests to applications that are not up
yet, and applications that the file no longer names are deleted while they still serve requests. So

1. models come up beside all that runs, while gateways route as before;
2. gateways take their new catalogue and settings, while the former models still answer;
3. models that are no longer named are removed once no gateway routes to them.

A model whose `args` changed stays one application: Serve starts its new replicas beside the old ones
(`max_surge_percent`, see `build.py`), while the old replicas finish their requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from serve_app.control.endpoints.room import GROWS
from serve_app.deployments.model.placement import no_place

File: TypeAlias = Mapping[str, Any]  # a deploy file: `ServeDeploySchema` as plain values


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """The deployment of one whole file, and the conditions for the next step."""

    title: str  # for people: what the step does
    file: File  # to be deployed
    up: tuple[str, ...]  # applications that must run
    unrouted: tuple[str, ...] = ()  # applications that no gateway may route to any more
    replaces: bool = True  # whether anything ran before

    @property
    def gateways(self) -> list[str]:
        """The applications of the file that have a route."""
        return [name for name, app in _apps(self.file).items() if _is_routed(app)]


def plan(running: File, wanted: File) -> list[RolloutStep]:
    """The steps from `running` to `wanted`, at least one; the last step deploys `wanted` itself.

    Applications with a route are gateways; all others are models.
    """
    before, after = _apps(running), _apps(wanted)
    models = [name for name, app in after.items() if not _is_routed(app)]
    removed = {name: app for name, app in before.items() if name not in after and not _is_routed(app)}
    added = [name for name in models if name not in before]
    changed = [name for name in models if name in before and before[name] != after[name]]
    # A gateway's catalogue says which model an application serves. So an application that is to serve
    # another model changes together with the gateway, in the next step.
    same_model = [name for name in changed if _model(before[name]) == _model(after[name])]
    has_gateway = any(map(_is_routed, before.values()))
    steps = []
    if has_gateway and (early := [*added, *same_model]):
        apps = {name: app for name, app in before.items() if name not in early}
        apps |= {name: app for name, app in after.items() if name in early}
        steps.append(RolloutStep(f"starting {', '.join(early)}", _with(wanted, apps), tuple(early)))
    if has_gateway and removed:
        steps.append(
            RolloutStep(
                "new endpoints and settings of the gateway",
                _with(wanted, {**after, **removed}),
                up=tuple(after),
                unrouted=tuple(removed),
            )
        )
        steps.append(RolloutStep(f"removing {', '.join(removed)}", wanted, tuple(after)))
    else:
        whole = "the whole file" if before else f"starting {', '.join(after)}"
        steps.append(
            RolloutStep("the gateway" if steps else whole, wanted, tuple(after), replaces=bool(before))
        )
    return steps


def without_place(file: File, nodes: Sequence[float]) -> Iterator[str]:
    """The deployments that fit on no machine of the cluster, and what to write. `nodes`: as of `no_place`.

    None if the file says that the cluster grows by itself.
    """
    apps = _apps(file)
    controls = [(app.get("args") or {}).get("control") or {} for app in apps.values()]
    if any(control.get("check_resources") is False for control in controls):
        return
    for name, app in apps.items():
        for each in app.get("deployments") or ():
            gpus = (each.get("ray_actor_options") or {}).get("num_gpus") or 0
            bundles = each.get("placement_group_bundles") or ()
            wrong = no_place(gpus, bundles, each.get("placement_group_strategy") or "", nodes)
            if wrong is not None:
                yield f"application {name}: {each.get('name')} asks for {wrong} {GROWS}"


def _apps(file: File) -> dict[str, Mapping[str, Any]]:
    return {str(app.get("name", "default")): app for app in file.get("applications") or ()}


def _with(file: File, apps: Mapping[str, Mapping[str, Any]]) -> File:
    return {**file, "applications": list(apps.values())}


def _is_routed(app: Mapping[str, Any]) -> bool:
    return app.get("route_prefix", "/") is not None  # Serve's own default


def _model(app: Mapping[str, Any]) -> tuple[str, str]:
    """The name and version of an application's model, by its settings."""
    args: Mapping[str, Any] = app.get("args") or {}
    return str(args.get("name", "")), str(args.get("version") or "")
