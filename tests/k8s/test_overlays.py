"""Each overlay, rendered by kubectl, is what Kubernetes, KubeRay, Ray and we ourselves accept."""

import re
import shlex
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from sqlalchemy import make_url as parse_url

from serve_app.config import default_usage_dir
from serve_app.config.places import DATABASE_URL
from tests.k8s.manifests import K8S, OVERLAYS, ROOT, every, groups, kubectl, only, render
from tests.k8s.rules import broken
from tests.k8s.schemas import kuberay, wrong_shapes

needs_kubectl = pytest.mark.skipif(kubectl() is None, reason="no kubectl; the dev extras bring it on Linux")
README = (K8S / "README.md").read_text("utf-8")


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_right(overlay: str) -> None:
    objects = render(overlay)
    assert list(wrong_shapes(objects)) == []
    assert list(broken(objects)) == []


@needs_kubectl
@pytest.mark.skipif(kuberay() is None, reason="set KUBERAY_CRD to a copy of KubeRay's RayService definition")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kuberay_knows_every_key(overlay: str) -> None:
    service = only(render(overlay), "RayService")
    assert kuberay().is_valid(service)
    service["spec"]["rayClusterConfig"]["enableInTreeAutoscalling"] = True
    assert not kuberay().is_valid(service)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_may_keep_weights_and_usage_on_volumes(overlay: str, tmp_path: Path) -> None:
    k8s = shutil.copytree(K8S, tmp_path / "k8s")
    file = k8s / "overlays" / overlay / "kustomization.yaml"
    file.write_text(file.read_text().replace("components:\n", "components:\n- ../../components/volumes\n"))
    objects = render(overlay, k8s)
    assert list(wrong_shapes(objects)) == []
    assert list(broken(objects)) == []
    claims = {claim["metadata"]["name"] for claim in every(objects, "PersistentVolumeClaim")}
    for name, group in groups(only(objects, "RayService")).items():
        pod = group["template"]["spec"]
        claimed = {
            each["name"]: each["persistentVolumeClaim"]["claimName"]
            for each in pod["volumes"]
            if "persistentVolumeClaim" in each
        }
        container = pod["containers"][0]
        mounts = {each["name"]: Path(each["mountPath"]) for each in container["volumeMounts"]}
        assert set(claimed.values()) == (set() if name == "head" else claims)
        if name != "head":
            environ = {each["name"]: each.get("value", "") for each in container["env"]}
            database = {Path("/var/lib/serve-app")} if "serve-app-database" in claims else set()
            written = {default_usage_dir(environ), Path(environ["HF_HOME"]), *database}
            assert {mounts[each] for each in claimed} == written
        # Folders between a mount and one inside of it are root's, so the server could not write there.
        assert not [each for each in mounts.values() if set(each.parents) & set(mounts.values())]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_worker_knows_the_database(overlay: str) -> None:
    """By a URL that the server opens; the smallest overlay needs nobody to make a secret for it."""
    for name, group in groups(only(render(overlay), "RayService")).items():
        variables = {each["name"]: each for each in group["template"]["spec"]["containers"][0]["env"]}
        if name == "head":
            assert DATABASE_URL not in variables
            continue
        found = variables[DATABASE_URL]
        if overlay == "local":
            assert parse_url(found["value"]).database == "/var/lib/serve-app/control.db"
        else:
            assert found["valueFrom"] == {"secretKeyRef": {"name": "serve-app-database", "key": "url"}}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_deploy_file_is_the_laptops_but_for_its_address(overlay: str) -> None:
    """By the command that k8s/README.md gives for changing both."""
    (command,) = re.findall(r"^(sed .*) deploy/\$name", README, re.M)
    source = ROOT / "deploy" / f"{overlay.replace('-', '_')}.yaml"
    copied = subprocess.run([*shlex.split(command), str(source)], capture_output=True, text=True, check=True)
    assert (K8S / "overlays" / overlay / "deploy.yaml").read_text() == copied.stdout


def test_every_overlay_is_described() -> None:
    assert [name for name in OVERLAYS if f"`{name}`" not in README] == []


def test_one_version_of_ray_everywhere() -> None:
    service = yaml.safe_load((K8S / "base" / "rayservice.yaml").read_text())
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == version("ray")
    assert f'"ray[serve]=={version("ray").rpartition(".")[0]}.*"' in (ROOT / "pyproject.toml").read_text()


def test_the_image_has_what_the_pods_need() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    installed = re.findall(r"apt-get install .*", dockerfile)[0].split()
    assert {"bash", "wget", "g++"} <= set(installed)  # KubeRay's probes, and the CPU kernels
    service = yaml.safe_load((K8S / "base" / "rayservice.yaml").read_text())
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    user = head["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in dockerfile
    home = re.findall(r"^ENV HOME=(.*)$", dockerfile, re.M)
    assert home[0] in {mount["mountPath"] for mount in head["containers"][0]["volumeMounts"]}
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.M))
    tags = re.findall(r"newTag: \S+-(\w+)", "".join(p.read_text() for p in K8S.rglob("kustomization.yaml")))
    assert set(tags) <= targets
