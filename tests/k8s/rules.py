"""What our manifests promise beyond any schema: each rule says where it is broken and what to write.

The deploy file has a check of its own (`serve_app.deployments.deploy_file.file`); here is what it
must agree on with the pods, and what keeps the pods closed, calm and replaceable.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from serve_app.accounts.key_file import ENVIRONMENT, ENVIRONMENT_FILE
from serve_app.config.places import DATABASE_URL
from serve_app.deployments import defaults, environment
from serve_app.deployments.deploy_file.file import problems
from tests.k8s.manifests import Object, every, groups, only

PART = {"app.kubernetes.io/part-of": "serve-app"}
PUBLIC = {8000, 8001}  # what anybody may reach
# What KubeRay sets (token), what belongs to one machine alone (a drain of a second), and what our
# launcher moves into a folder of its own, which a pod has anyway.
NOT_IN_PODS = {"RAY_AUTH_MODE", "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"}
SECRETS = (ENVIRONMENT, "HF_TOKEN", "SERVE_APP_CONSOLE_SECRET")


def broken(objects: list[Object]) -> Iterator[str]:
    """Every broken promise of a rendered overlay, one line each."""
    service = only(objects, "RayService")
    yield from _deploy_file(service, only(objects, "ConfigMap"))
    yield from _cluster(service)
    for name, group in groups(service).items():
        yield from _pod(name, group["template"])
        if name != "head":
            yield from _worker(name, group)
    yield from _policy(only(objects, "NetworkPolicy"), service)
    yield from _budgets(every(objects, "PodDisruptionBudget"), service)


def _deploy_file(service: Object, config: Object) -> Iterator[str]:
    text = service["spec"].get("serveConfigV2", "")
    if text != config["data"].get("deploy.yaml"):
        yield "spec.serveConfigV2 is not deploy.yaml; copy it with the overlay's `replacements`"
    yield from (f"deploy.yaml: {problem}" for problem in problems(text))
    raw = yaml.safe_load(text) or {}
    if raw.get("http_options", {}).get("host") != "0.0.0.0":
        yield "deploy.yaml: http_options.host: a pod is reached from outside it; write `host: 0.0.0.0`"
    if raw.get("proxy_location") != "EveryNode":
        yield "deploy.yaml: proxy_location: the Service sends to workers; write `proxy_location: EveryNode`"
    sizes = {name: _offers(group) for name, group in groups(service).items() if name != "head"}
    for app in raw.get("applications", []):
        for each in app.get("deployments", []):
            asked = each.get("ray_actor_options", {})
            own = {"CPU": asked.get("num_cpus", 0), "GPU": asked.get("num_gpus", 0)}
            bundles = each.get("placement_group_bundles") or [own]
            for cpus, gpus in ((bundle.get("CPU", 0), bundle.get("GPU", 0)) for bundle in bundles):
                if not any(cpus <= offer[0] and gpus <= offer[1] for offer in sizes.values()):
                    yield (
                        f"deploy.yaml: {app['name']}: {each['name']} asks for {cpus} CPUs and {gpus} GPUs, "
                        f"and no worker group offers them ({sizes}); keep or add a group that requests as "
                        "much"
                    )
            most = sum(
                group["maxReplicas"] * group.get("numOfHosts", 1)
                for name, group in groups(service).items()
                if name != "head" and all(b.get("GPU", 0) <= sizes[name][1] for b in bundles)
            )
            if each.get("placement_group_strategy") == "STRICT_SPREAD" and most < len(bundles):
                yield (
                    f"deploy.yaml: {app['name']}: {each['name']} needs {len(bundles)} pods at once, and "
                    f"there are {most} at most; raise maxReplicas or numOfHosts of their group"
                )


def _cluster(service: Object) -> Iterator[str]:
    spec, cluster = service["spec"], service["spec"]["rayClusterConfig"]
    if len(service["metadata"]["name"]) > 47:
        yield "metadata.name: KubeRay adds to it; write at most 47 characters"
    kinds = ("NewCluster", "None")
    if spec.get("upgradeStrategy", {}).get("type") not in kinds:
        yield f"spec.upgradeStrategy.type: the operator refuses it; write {' or '.join(kinds)}"
    if cluster.get("authOptions", {}).get("mode") != "token":
        yield "rayClusterConfig.authOptions: Ray's ports run code; write `authOptions: {mode: token}`"
    if cluster["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield 'headGroupSpec.rayStartParams: no replica runs beside the control plane; write `num-cpus: "0"`'
    if spec.get("rayClusterDeletionDelaySeconds", 60) < environment.DRAIN_S:
        yield (
            "spec.rayClusterDeletionDelaySeconds: the old cluster of an upgrade must finish its answers; "
            f"write at least {environment.DRAIN_S}"
        )


def _pod(name: str, template: Object) -> Iterator[str]:
    labels, spec = template["metadata"]["labels"], template["spec"]
    (container,) = spec["containers"]
    where = f"group {name}"
    if not PART.items() <= labels.items():
        yield f"{where}: labels: the NetworkPolicy selects by one; write {PART}"
    if spec.get("securityContext", {}).get("runAsNonRoot") is not True:
        yield f"{where}: securityContext: write `runAsNonRoot: true`"
    for key, value in (("allowPrivilegeEscalation", False), ("readOnlyRootFilesystem", True)):
        if container.get("securityContext", {}).get(key) is not value:
            yield f"{where}: container securityContext: write `{key}: {str(value).lower()}`"
    if container["image"].rpartition(":")[2] in ("", "latest", container["image"]):
        yield f"{where}: image: pods of one cluster must be of one build; write a tag, and not `latest`"
    resources = container.get("resources", {})
    memory = resources.get("requests", {}).get("memory")
    if memory is None or memory != resources.get("limits", {}).get("memory"):
        yield f"{where}: resources: promised memory must be there; write the same in requests and limits"
    values = {each["name"]: each.get("value") for each in container["env"]}
    for variable, wanted in environment.COMMON.items():
        if variable not in NOT_IN_PODS and values.get(variable) != wanted:
            yield f"{where}: env: {variable} is not as everywhere; write `value: {wanted!r}`"
    if values.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
        yield f"{where}: env: Serve's own proxy is slow; write RAY_SERVE_ENABLE_HA_PROXY with `value: '1'`"
    for secret in SECRETS:
        if values.get(secret) is not None:
            yield f"{where}: env: {secret} stands in the manifest; write `valueFrom: {{secretKeyRef: ...}}`"


def _worker(name: str, group: Object) -> Iterator[str]:
    where = f"group {name}"
    low, now, high = (group[key] for key in ("minReplicas", "replicas", "maxReplicas"))
    if not low <= now <= high:
        yield f"{where}: replicas is {now}; write a number from minReplicas ({low}) to maxReplicas ({high})"
    spec = group["template"]["spec"]
    (container,) = spec["containers"]
    drain = float(
        next(
            (e["value"] for e in container["env"] if e["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"), 30
        )
    )
    if drain <= defaults.DRAIN_S:
        yield (
            f"{where}: env: RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S is {drain:g}, and a replica may take "
            f"{defaults.DRAIN_S:g} s to finish its answers; write more"
        )
    if spec.get("terminationGracePeriodSeconds", 30) <= drain:
        yield f"{where}: terminationGracePeriodSeconds: the node drains for {drain:g} s first; write more"
    values = {each["name"]: each.get("value") for each in container["env"]}
    keys, mounts = values.get(ENVIRONMENT_FILE), {each["mountPath"] for each in _mounted(spec, "secret")}
    if keys is None or keys.rpartition("/")[0] not in mounts:
        yield (
            f"{where}: env: without keys nobody is served; write {ENVIRONMENT_FILE} with a path below "
            f"where a secret is mounted ({sorted(mounts)})"
        )
    yield from _database(where, spec)


def _database(where: str, spec: Object) -> Iterator[str]:
    """The control plane may run on any worker, and what it keeps must outlive each of them."""
    (container,) = spec["containers"]
    found: Object = next((each for each in container["env"] if each["name"] == DATABASE_URL), {})
    if "secretKeyRef" in found.get("valueFrom", {}):
        return
    url = str(found.get("value") or "")
    claimed = [each["mountPath"] for each in _mounted(spec, "persistentVolumeClaim")]
    folder = url.removeprefix("sqlite:///").rpartition("/")[0]
    if not url.startswith("sqlite:////") or folder not in claimed:
        yield (
            f"{where}: env: what is made at run time would be lost with a pod; write {DATABASE_URL} from a "
            f"secret, or sqlite with a file below where a claim is mounted ({sorted(claimed)})"
        )


def _mounted(spec: Object, kind: str) -> Iterator[Object]:
    """The mounts of a pod's volumes of this kind."""
    names = {each["name"] for each in spec.get("volumes", []) if kind in each}
    (container,) = spec["containers"]
    yield from (each for each in container.get("volumeMounts", []) if each["name"] in names)


def _policy(policy: Object, service: Object) -> Iterator[str]:
    spec = policy["spec"]
    for name, group in groups(service).items():
        labels = group["template"]["metadata"]["labels"]
        if not spec["podSelector"].get("matchLabels", {}).items() <= labels.items():
            yield f"NetworkPolicy: podSelector does not select group {name}, so it is open; write {PART}"
    if "Ingress" not in spec.get("policyTypes", []):
        yield "NetworkPolicy: policyTypes: write [Ingress]"
    for rule in spec["ingress"]:
        ports = {each["port"] for each in rule.get("ports", [])}
        if not rule.get("from") and (not ports or ports - PUBLIC):
            opened = sorted(ports - PUBLIC) or "every port"
            yield f"NetworkPolicy: opens {opened} to everybody; write a `from`, or only port {sorted(PUBLIC)}"


def _budgets(budgets: list[Object], service: Object) -> Iterator[str]:
    """Each group has a budget of its own. (One for a group that an overlay removes selects nobody.)"""
    wanted = [budget["spec"]["selector"]["matchLabels"].items() for budget in budgets]
    for name, group in groups(service).items():
        labels = group["template"]["metadata"]["labels"]
        if sum(each <= labels.items() for each in wanted) != 1:
            yield f"PodDisruptionBudget: group {name} needs one of its own; write the labels of group {name}"
    if not all(isinstance(budget["spec"].get("minAvailable"), int) for budget in budgets):
        yield "PodDisruptionBudget: a RayCluster has no scale; write a whole number as `minAvailable`"


def _offers(group: Object) -> tuple[float, float]:
    """The CPUs and GPUs that Ray counts in a pod: KubeRay reads the limits, then the requests."""
    (container,) = group["template"]["spec"]["containers"]
    resources = container["resources"]
    cpu = str(resources.get("limits", {}).get("cpu") or resources["requests"]["cpu"])
    cpus = float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
    return cpus, float(resources.get("limits", {}).get("nvidia.com/gpu", 0))
