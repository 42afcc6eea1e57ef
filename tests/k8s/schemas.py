"""Objects against schemas with unknown keys refused: Kubernetes' own, and KubeRay's where there is a copy.

A RayService's pod templates and its service are checked against Kubernetes' schemas too, so
that most of it is checked without KubeRay's definition. Not covered: the rules of that
definition that are written in CEL.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from serve_app.endpoints.catalogue import suggestion
from tests.k8s.manifests import ROOT, Object, groups

VERSION = "1.33"  # of Kubernetes; KubeRay 1.7 supports 1.26 and later


def wrong_shapes(objects: list[Object]) -> Iterator[str]:
    """What the schemas refuse, one line each."""
    for each in objects:
        name = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] != "RayService":
            yield from _kubernetes(each, name)
            continue
        for group, spec in groups(each).items():
            template = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": group},
                "template": spec["template"],
            }
            yield from _kubernetes(template, f"{name}: group {group}")
        service = {"apiVersion": "v1", "kind": "Service", **each["spec"].get("serveService", {})}
        yield from _kubernetes(service, f"{name}: serveService")
        validator = kuberay()
        if validator is not None:
            for error in validator.iter_errors(_without_nulls(each)):
                yield _line(name, error)


@functools.cache
def kuberay() -> Any:
    """A validator made of the RayService definition that KUBERAY_CRD names; None without one."""
    beside = ROOT.parent / "shared" / "k8s" / "ray.io_rayservices.yaml"
    path = Path(os.environ.get("KUBERAY_CRD", beside))
    if not path.is_file():
        return None
    definition = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    return jsonschema.Draft202012Validator(schema)


def _kubernetes(each: Object, name: str) -> Iterator[str]:
    try:
        kubernetes_validate.validate(each, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield _line(name, error)


def _line(name: str, error: Any) -> str:
    path = ".".join(map(str, error.path))
    unknown = re.search(r"\('(\w+)' was unexpected\)", error.message)
    if unknown:
        known = suggestion(unknown[1], error.schema.get("properties", {}))
        return f"{name}: {path}.{unknown[1]}: unknown key; {known}"
    return f"{name}: {path}: {error.message[:300]}"


def _closed(node: Any) -> Any:
    """A structural schema of Kubernetes as a JSON schema in which unknown keys are errors.

    The API server fills in defaults before it looks at `required`, so those are not required here.
    """
    if not isinstance(node, dict):
        return node
    node = dict(node)
    if node.pop("x-kubernetes-int-or-string", False):
        node.pop("type", None)
        node["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    is_open = node.pop("x-kubernetes-preserve-unknown-fields", False)
    if "properties" in node:
        node["properties"] = {key: _closed(value) for key, value in node["properties"].items()}
        node["required"] = [k for k in node.get("required", []) if "default" not in node["properties"][k]]
        if not is_open:
            node.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        node.update({key: _closed(node[key])} if isinstance(node.get(key), dict) else {})
    return node


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
