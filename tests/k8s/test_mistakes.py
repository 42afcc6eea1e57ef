"""Mistakes in manifests and in their deploy files are caught, and told with what to write instead."""

import shutil
from pathlib import Path

import pytest

from tests.k8s.manifests import K8S, CannotRender, kubectl, render
from tests.k8s.rules import broken
from tests.k8s.schemas import kuberay, wrong_shapes

pytestmark = pytest.mark.skipif(kubectl() is None, reason="no kubectl; the dev extras bring it on Linux")

SERVICE, POLICY, BUDGET = "base/rayservice.yaml", "base/networkpolicy.yaml", "base/poddisruptionbudget.yaml"
OVERLAY, DEPLOY = "overlays/ab-test/kustomization.yaml", "overlays/ab-test/deploy.yaml"

# the file, what is written, what stands there instead, and what is said
MISTAKES = {
    "a key of a kustomization": (OVERLAY, "replacements:", "replacement:", 'unknown field "replacement"'),
    "a source that is not there": (OVERLAY, "data.[deploy.yaml]", "data.[serve.yaml]", "data.[serve.yaml]"),
    "a key of a container": (
        SERVICE,
        "readOnlyRootFilesystem",
        "readOnlyRootFileSystem",
        "'readOnlyRootFilesystem'",
    ),
    "a key of a pod": (
        SERVICE,
        "terminationGracePeriodSeconds: 720",
        "terminationGracePeriod: 720",
        "did you mean 'terminationGracePeriodSeconds'?",
    ),
    "a key of the service": (SERVICE, "targetPort", "targetport", "did you mean 'targetPort'?"),
    "a value of the wrong kind": (SERVICE, 'value: "900"', "value: 900", "900 is not of type 'string'"),
    "a key of a policy": (
        POLICY,
        "policyTypes: [",
        "policyType: [",
        "did you mean 'policyTypes'?",
    ),
    "a key of a budget": (BUDGET, "minAvailable: 1", "minimumAvailable: 1", "did you mean 'minAvailable'?"),
    "a percentage in a budget": (BUDGET, "minAvailable: 1", "minAvailable: 50%", "write a whole number"),
    "a budget for nobody": (BUDGET, "component: cpu", "component: gateway", "write the labels of group cpu"),
    "no budget for the head": (
        BUDGET,
        "component: head",
        "component: heads",
        "write the labels of group head",
    ),
    "no budget for the GPUs": (BUDGET, "component: gpu", "component: cpu", "write the labels of group"),
    "a database in a pod": (
        "components/postgres/kustomization.yaml",
        "valueFrom: {secretKeyRef: {name: serve-app-database, key: url}}",
        'value: "sqlite:////home/serve/control.db"',
        "lost with a pod; write SERVE_APP_DATABASE_URL from a secret",
    ),
    "keys that are not mounted": (
        SERVICE,
        "mountPath: /etc/serve-app/keys",
        "mountPath: /keys",
        "(['/keys'])",
    ),
    "a port for everybody": (
        POLICY,
        "port: 8001}\n  - from: # Prom",
        "port: 6379}\n  - from: # Prom",
        "[6379] to everybody",
    ),
    "a policy that misses the pods": (
        POLICY,
        "podSelector: {matchLabels: {app.kubernetes.io/part-of: serve-app}}\n  policy",
        "podSelector: {matchLabels: {app: serve-app}}\n  policy",
        "does not select group head",
    ),
    "no token": (SERVICE, "authOptions: {mode: token}", "authOptions: {mode: disabled}", "mode: token"),
    "an upgrade that the operator refuses": (
        SERVICE,
        "type: NewCluster",
        "type: Rolling",
        "write NewCluster or None",
    ),
    "replicas on the head": (SERVICE, 'num-cpus: "0"', 'num-cpus: "2"', 'write `num-cpus: "0"`'),
    "an old cluster that goes too soon": (
        SERVICE,
        "rayClusterDeletionDelaySeconds: 960",
        "rayClusterDeletionDelaySeconds: 60",
        "write at least 900",
    ),
    "a pod that goes too soon": (
        SERVICE,
        "Seconds: 720",
        "Seconds: 60",
        "drains for 660 s first; write more",
    ),
    "a drain that ends too soon": (
        SERVICE,
        'value: "660"',
        'value: "60"',
        "600 s to finish its answers; write more",
    ),
    "no HAProxy": (
        SERVICE,
        '{name: RAY_SERVE_ENABLE_HA_PROXY, value: "1"}',
        '{name: RAY_SERVE_ENABLE_HA_PROXY, value: "0"}',
        "write RAY_SERVE_ENABLE_HA_PROXY",
    ),
    "another environment": (
        SERVICE,
        'RAY_SERVE_USE_GRPC_BY_DEFAULT, value: "0"',
        'RAY_SERVE_USE_GRPC_BY_DEFAULT, value: "1"',
        "RAY_SERVE_USE_GRPC_BY_DEFAULT is not as everywhere; write `value: '0'`",
    ),
    "a secret in the open": (
        SERVICE,
        "valueFrom: {secretKeyRef: {name: serve-app-hf, key: token, optional: true}}",
        "value: hf_abc",
        "HF_TOKEN stands in the manifest",
    ),
    "root": (SERVICE, "runAsNonRoot: true", "runAsNonRoot: false", "write `runAsNonRoot: true`"),
    "no tag": (
        "base/kustomization.yaml",
        "newTag: 0.1.0-cpu",
        "newTag: latest",
        "write a tag, and not `latest`",
    ),
    "more memory than is promised": (
        SERVICE,
        "limits: {memory: 8Gi}",
        "limits: {memory: 16Gi}",
        "write the same in requests and limits",
    ),
    "more replicas than there may be": (SERVICE, "replicas: 2", "replicas: 20", "to maxReplicas (8)"),
    "a loopback address": (DEPLOY, "host: 0.0.0.0", "host: 127.0.0.1", "write `host: 0.0.0.0`"),
    "proxies on the head only": (DEPLOY, "EveryNode", "HeadOnly", "write `proxy_location: EveryNode`"),
    "a key of the deploy file": (DEPLOY, "num_replicas", "num_replica", "did you mean 'num_replicas'?"),
    "traffic that does not add up": (DEPLOY, "demo-chat-2: 10", "demo-chat-2: 20", "add up to 110"),
    "a model that is not there": (
        DEPLOY,
        "- name: model-demo-chat_v_2",
        "- name: model-demo-chat_v_3",
        "set the entity's `app`",
    ),
    "a GPU that no pod has": (
        DEPLOY,
        "{num_cpus: 0.25}",
        "{num_cpus: 0.25, num_gpus: 1}",
        "keep or add a group",
    ),
}


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(each, marks=pytest.mark.full if n % 3 else ()) for n, each in enumerate(MISTAKES)],
)
def test_a_mistake_is_caught_with_what_to_write_instead(mistake: str, tmp_path: Path) -> None:
    name, written, instead, message = MISTAKES[mistake]
    k8s = shutil.copytree(K8S, tmp_path / "k8s")
    text = (k8s / name).read_text()
    assert written in text
    (k8s / name).write_text(text.replace(written, instead, 1))
    assert any(message in line for line in found(k8s)), found(k8s)


@pytest.mark.skipif(kuberay() is None, reason="set KUBERAY_CRD to a copy of KubeRay's RayService definition")
@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("enableInTreeAutoscaling", "enableInTreeAutoscalling", "did you mean 'enableInTreeAutoscaling'?"),
        ("serveService", "serveServices", "did you mean 'serveService'?"),
        ("idleTimeoutSeconds: 300", "idleTimeoutSeconds: soon", "'soon' is not of type 'integer'"),
    ],
)
def test_a_key_that_kuberay_does_not_know_is_caught(
    written: str, instead: str, message: str, tmp_path: Path
) -> None:
    k8s = shutil.copytree(K8S, tmp_path / "k8s")
    text = (k8s / SERVICE).read_text()
    (k8s / SERVICE).write_text(text.replace(written, instead, 1))
    assert any(message in line for line in found(k8s))


def found(k8s: Path) -> list[str]:
    try:
        objects = render("ab-test", k8s)
    except CannotRender as error:
        return [str(error)]
    return list(wrong_shapes(objects)) or list(broken(objects))
