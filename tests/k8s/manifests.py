"""What `kubectl apply -k` would send: an overlay as objects, rendered by kubectl itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())

# The one in C reads ten times as fast, where PyYAML has it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]


class CannotRender(Exception):
    """kubectl refused a kustomization; the message is its own."""


def kubectl() -> str | None:
    """The one beside this Python (the dev extras bring it on Linux), else any other."""
    return shutil.which(
        "kubectl", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )


def render(overlay: str, k8s: Path = K8S) -> list[Object]:
    """All objects of an overlay. Needs no cluster."""
    command = kubectl()
    if command is None:
        raise FileNotFoundError("kubectl")
    done = subprocess.run(
        [command, "kustomize", str(k8s / "overlays" / overlay)], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        raise CannotRender(done.stderr.strip())
    return list(yaml.load_all(done.stdout, Loader=LOADER))


def every(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def only(objects: list[Object], kind: str) -> Object:
    (found,) = every(objects, kind)
    return found


def groups(service: Object) -> dict[str, Object]:
    """The pod groups of a RayService, the head's among them, by name."""
    cluster = service["spec"]["rayClusterConfig"]
    return {"head": cluster["headGroupSpec"]} | {
        group["groupName"]: group for group in cluster["workerGroupSpecs"]
    }
