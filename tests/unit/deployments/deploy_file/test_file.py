"""A wrong deploy file is refused by name, with what to write instead, before Ray starts."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.deployments import build
from serve_app.deployments.deploy_file.checks import App
from serve_app.deployments.deploy_file.file import DeployFileError, load, problems
from serve_app.deployments.deploy_file.problem import Place, Severity

DEPLOY = sorted((Path(__file__).parents[4] / "deploy").glob("*.yaml"))

RIGHT = """
proxy_location: EveryNode
http_options: {host: 127.0.0.1, port: 8000}
applications:
- name: system
  route_prefix: /
  import_path: serve_app.deployments.build:build_system_app
  args: {max_in_flight: 100}
  deployments:
  - name: Gateway
    num_replicas: 2
    max_ongoing_requests: 264
    user_config:
      endpoints:
      - name: assistant
        served_entities:
        - {name: a, model: demo-chat, version: 1}
        - {name: b, model: demo-chat, version: 2}
        traffic: {a: 90, b: 10}
      - name: bought
        kind: provisioned_throughput
        served_entities:
        - {model: demo-chat, app: bought-chat, min_provisioned_throughput: 5, max_provisioned_throughput: 10}
  - name: Limiter
    ray_actor_options: {num_cpus: 0.1}
- name: model-demo-chat_v_1
  route_prefix: null
  import_path: serve_app.deployments.build:build_model_app
  args: {name: demo-chat, version: "1", engine: {max_sequences: 8, max_waiting: 8}}
  deployments:
  - name: Model
    autoscaling_config:
      min_replicas: 1
      max_replicas: 4
      policy: {policy_function: "serve_app.deployments.model.scaling:ByLoad"}
- name: model-demo-chat_v_2
  route_prefix: null
  import_path: serve_app.deployments.build:build_model_app
  args: {name: demo-chat, version: "2", device: cpu}
- name: bought-chat
  route_prefix: null
  import_path: serve_app.deployments.build:build_model_app
  args: {name: demo-chat, provisioned: {min_throughput: 5, max_throughput: 10, replica_throughput: 5}}
"""


@pytest.mark.parametrize("path", DEPLOY, ids=lambda path: path.name)
def test_our_own_files_are_right(path: Path) -> None:
    assert problems(path.read_text()) == []


def test_a_right_file_is_read_as_its_builders_read_it(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(RIGHT)
    loaded = load(file)
    assert loaded.warnings == ()
    assert loaded.gateway == GatewayConfig(max_in_flight=100)
    assert loaded.models["model-demo-chat_v_2"] == ModelConfig(name="demo-chat", version="2", device="cpu")
    assert [endpoint.name for endpoint in loaded.catalogue.endpoints] == ["assistant", "bought"]
    assert loaded.raw == yaml.safe_load(RIGHT)


# what is written, what stands there instead, where the problem is, and what its message says
MISTAKES = {
    "no YAML": ("http_options: {", "http_options: [", "", "no YAML"),
    "a key twice": (
        "proxy_location: EveryNode",
        "proxy_location: EveryNode\nproxy_location: HeadOnly",
        "proxy_location",
        "there twice, on lines 2 and 3",
    ),
    "a misspelt key of the file": ("proxy_location:", "proxy_locaton:", "proxy_locaton", "'proxy_location'"),
    "a misspelt key of HTTP": ("port: 8000", "prot: 8000", "http_options.prot", "did you mean 'port'?"),
    "no host": ("host: 127.0.0.1, ", "", "http_options.host", "write `host: 127.0.0.1`"),
    "a port that there is not": (
        "port: 8000",
        "port: 70000",
        "http_options.port",
        "from 1 to 65535; it is 70000",
    ),
    "a port below all": ("port: 8000", "port: 0", "http_options.port", "from 1 to 65535; it is 0"),
    "one port for HTTP and gRPC": (
        "max_in_flight: 100",
        "grpc_port: 8000",
        "applications[0].args.grpc_port",
        "HTTP listens at 8000 already",
    ),
    "no replica": (
        "num_replicas: 2",
        "num_replicas: 0",
        "applications[0].deployments[0].num_replicas",
        "must be greater than 0; it is 0",
    ),
    "a wrong proxy location": ("EveryNode", "Everywhere", "proxy_location", "'EveryNode'"),
    "a misspelt key of an application": (
        "route_prefix: /",
        "route_prefx: /",
        "applications[0].route_prefx (application 'system')",
        "did you mean 'route_prefix'?",
    ),
    "a misspelt key of a deployment": (
        "max_ongoing_requests",
        "max_ongoing_request",
        "applications[0].deployments[0].max_ongoing_request (application 'system', deployment 'Gateway')",
        "did you mean 'max_ongoing_requests'?",
    ),
    "a misspelt key of actor options": (
        "num_cpus",
        "cpus",
        "applications[0].deployments[1].ray_actor_options.cpus",
        "did you mean 'num_cpus'?",
    ),
    "a misspelt key of autoscaling": (
        "max_replicas",
        "maximum_replicas",
        "applications[1].deployments[0].autoscaling_config.maximum_replicas",
        "did you mean 'max_replicas'?",
    ),
    "an autoscaling value": ("min_replicas: 1", "min_replicas: 5", "autoscaling_config", "max_replicas"),
    "a policy that is not there": (
        "scaling:ByLoad",
        "scaling:ByLoads",
        "applications[1].deployments[0].autoscaling_config.policy.policy_function",
        "has no 'ByLoads'; did you mean 'serve_app.deployments.model.scaling:ByLoad'?",
    ),
    "a policy's argument out of range": (
        '"serve_app.deployments.model.scaling:ByLoad"',
        '"serve_app.deployments.model.scaling:ByLoad", policy_kwargs: {high: 5}',
        "applications[1].deployments[0].autoscaling_config.policy.policy_kwargs",
        "high: must be above 0 and at most 1, not 5",
    ),
    "a policy's argument that it does not have": (
        '"serve_app.deployments.model.scaling:ByLoad"',
        '"serve_app.deployments.model.scaling:ByLoad", policy_kwargs: {hihg: 0.5}',
        "applications[1].deployments[0].autoscaling_config.policy.policy_kwargs",
        "unexpected keyword argument 'hihg'",
    ),
    "a module that is not there": (
        "serve_app.deployments.build:build_system_app",
        "serve_app.deployment.build:build_system_app",
        "applications[0].import_path",
        "did you mean 'serve_app.deployments.build:build_system_app'?",
    ),
    "a builder that is not there": (
        "build:build_system_app",
        "build:build_systems_app",
        "applications[0].import_path",
        "did you mean 'serve_app.deployments.build:build_system_app'?",
    ),
    "an unknown argument": (
        "max_in_flight",
        "max_inflight",
        "applications[0].args.max_inflight",
        "did you mean 'max_in_flight'?",
    ),
    "an unknown argument inside": (
        "max_sequences",
        "max_sequence",
        "applications[1].args.engine.max_sequence (application 'model-demo-chat_v_1')",
        "did you mean 'max_sequences'?",
    ),
    "an argument of an earlier version": (
        "device: cpu",
        "device: cpu, engine_process: true",
        "applications[2].args.engine_process",
        "is no setting any more: the engine always steps in a thread; take the key out",
    ),
    "an argument out of range": (
        "max_sequences: 8",
        "max_sequences: 0",
        "applications[1].args.engine.max_sequences",
        "must be greater than or equal to 1; it is 0",
    ),
    "an argument of another kind": ("device: cpu", "device: tpu", "applications[2].args.device", "'cuda'"),
    "a name that YAML takes for a number": (
        'args: {name: demo-chat, version: "2"',
        'args: {name: 7, version: "2"',
        "applications[2].args.name",
        "write it in quotes: '7'",
    ),
    "traffic that does not add up": (
        "b: 10}",
        "b: 20}",
        "applications[0].deployments[0].user_config",
        "endpoints[0] (endpoint 'assistant'): traffic: the percentages add up to 110",
    ),
    "an application that is not there": (
        "- name: model-demo-chat_v_2",
        "- name: model-demo-chat_v2",
        "user_config.endpoints[0].served_entities[1]",
        "did you mean 'model-demo-chat_v2'?",
    ),
    "an application of another version": (
        'version: "2"',
        'version: "3"',
        "user_config.endpoints[0].served_entities[1]",
        "serves 'demo-chat' version 3, not 'demo-chat' version 2",
    ),
    "no gateway": (
        "build:build_system_app",
        "build:build_model_app",
        "applications",
        "add one with `name: system`",
    ),
    "a gateway without a route": (
        "route_prefix: /",
        "route_prefix: null",
        "applications[0].route_prefix",
        "write `route_prefix: /`",
    ),
    "a model with a route": (
        "route_prefix: null\n",
        "\n",
        "applications[1].route_prefix",
        "write `route_prefix: null`",
    ),
    "two applications of one name": (
        "- name: model-demo-chat_v_2",
        "- name: model-demo-chat_v_1",
        "applications[2].name",
        "choose one of its own",
    ),
    "a model called as the gateway": (
        "- name: bought-chat",
        "- name: system",
        "applications[3].name",
        "is the gateway's",
    ),
    "a deployment that is not there": (
        "- name: Model",
        "- name: Modle",
        "applications[1].deployments[0].name",
        "did you mean 'Model'?",
    ),
    "a deployment twice": (
        "- name: Limiter",
        "- name: Gateway",
        "applications[0].deployments[1]",
        "there twice",
    ),
    "a fixed number and a scale": (
        "autoscaling_config:",
        "num_replicas: 2\n    autoscaling_config:",
        "applications[1].deployments[0].num_replicas",
        "keep num_replicas for a fixed number",
    ),
    "a number beside what was bought": (
        "replica_throughput: 5}}",
        "replica_throughput: 5}}\n  deployments: [{name: Model, num_replicas: 2}]",
        "applications[3].deployments[0].num_replicas",
        "follows from `args.provisioned`; remove this",
    ),
    "two limiters": (
        "- name: Limiter",
        "- name: Limiter\n    num_replicas: 2",
        "applications[0].deployments[1]",
        "remove num_replicas",
    ),
    "another throughput than was bought": (
        "max_throughput: 10,",
        "max_throughput: 20,",
        "applications[3].args.provisioned",
        "sells `min_throughput: 5, max_throughput: 10`",
    ),
    "nothing that was bought": (
        ", provisioned: {min_throughput: 5, max_throughput: 10, replica_throughput: 5}}",
        "}",
        "applications[3].args.provisioned",
        "write `provisioned: {min_throughput: 5, max_throughput: 10, replica_throughput: ...}`",
    ),
    "bought throughput for pay-per-token": (
        'version: "2", device: cpu',
        'version: "2", provisioned: {max_throughput: 10, replica_throughput: 5}',
        "applications[2].args.provisioned",
        "is paid per token; remove it",
    ),
    "CUDA without a GPU": (
        "device: cpu",
        "device: cuda}\n  deployments: [{name: Model}]\n  #",
        "applications[2].deployments[0].ray_actor_options.num_gpus",
        "write `num_gpus: 1`",
    ),
    "more GPUs than a replica can use": (
        "device: cpu}",
        "device: cuda}\n  deployments: [{name: Model, ray_actor_options: {num_gpus: 2}}]",
        "applications[2].deployments[0].ray_actor_options.num_gpus",
        "2 GPUs for a replica: its model runs on one; write `num_gpus: 1`",
    ),
    "fewer GPUs than ranks": (
        "device: cpu}",
        "device: cuda, tensor_parallel: 4, source: no/where}\n"
        "  deployments: [{name: Model, ray_actor_options: {num_gpus: 2}}]",
        "applications[2].deployments[0].ray_actor_options.num_gpus",
        "its model has 4 ranks, one on each GPU; write `num_gpus: 4`",
    ),
    "more ranks than the model can be divided among": (
        "device: cpu}",
        "device: cpu, tensor_parallel: 5}",
        "applications[2].args.tensor_parallel",
        "cannot be divided among 5 ranks; tensor_parallel can be 1;",
    ),
    "more stages than layers": (
        "device: cpu}",
        "device: cpu, pipeline_parallel: 64}",
        "applications[2].args.pipeline_parallel",
        "are fewer than 64 stages; choose another number",
    ),
    "more bundles than a replica can use": (
        "device: cpu}",
        "device: cuda}\n  deployments: [{name: Model, ray_actor_options: {num_gpus: 1}, "
        "placement_group_bundles: [{CPU: 1, GPU: 1}, {GPU: 1}]}]",
        "applications[2].deployments[0].placement_group_bundles",
        "reserves 2 bundles for a replica",
    ),
    "bundles that are not as many GPUs as ranks": (
        "device: cpu}",
        "device: cuda, tensor_parallel: 4, source: no/where}\n  deployments: [{name: Model, "
        "ray_actor_options: {num_gpus: 1}, placement_group_bundles: [{CPU: 1, GPU: 1}, {GPU: 1}]}]",
        "applications[2].deployments[0].placement_group_bundles",
        "have 1, 1 GPUs, and each of the 4 ranks",
    ),
    "all GPUs for the first rank of several bundles": (
        "device: cpu}",
        "device: cuda, tensor_parallel: 2, source: no/where}\n  deployments: [{name: Model, "
        "ray_actor_options: {num_gpus: 2}, placement_group_bundles: [{CPU: 1, GPU: 1}, {GPU: 1}]}]",
        "applications[2].deployments[0].ray_actor_options.num_gpus",
        "write `num_gpus: 1`",
    ),
    "bundles without a GPU": (
        "device: cpu}",
        "device: cuda, tensor_parallel: 2, source: no/where}\n  deployments: [{name: Model, "
        "placement_group_bundles: [{CPU: 1}, {CPU: 1}]}]",
        "applications[2].deployments[0].placement_group_bundles",
        "no bundle has a GPU",
    ),
    "a first bundle without the CPUs of the replica": (
        "device: cpu}",
        "device: cpu, tensor_parallel: 2, source: no/where}\n  deployments: [{name: Model, "
        "ray_actor_options: {num_cpus: 4}, placement_group_bundles: [{CPU: 1}, {CPU: 1}]}]",
        "applications[2].deployments[0].placement_group_bundles[0].CPU",
        "must be 4 or more",
    ),
    "a bundle of more GPUs than a replica can use": (
        "device: cpu}",
        "device: cuda}\n  deployments: [{name: Model, ray_actor_options: {num_gpus: 1}, "
        "placement_group_bundles: [{CPU: 1, GPU: 2}]}]",
        "applications[2].deployments[0].placement_group_bundles[0].GPU",
        "2 GPUs for a replica",
    ),
    "a host inside an application": (
        "route_prefix: /",
        "host: 0.0.0.0\n  route_prefix: /",
        "applications[0].host",
        "http_options.host",
    ),
}


MISTAKES |= {
    "safety that nobody judges": (
        "      - name: assistant\n",
        "      - name: assistant\n        ai_gateway: {guardrails: {output: {safety: true}}}\n",
        "applications[0].deployments[0].user_config",
        "endpoints[0].ai_gateway.guardrails.model (endpoint 'assistant'): must name an endpoint that chats, "
        "because output has safety or valid_topics, which a model judges; `guardrails_model` in the "
        "gateway's `args` can name one for all endpoints",
    ),
    "a judge that there is not": (
        "{max_in_flight: 100}",
        "{max_in_flight: 100, guardrails_model: asistant, control: {enabled: false}}",
        "applications[0].args.guardrails_model",
        "there is no endpoint 'asistant', so it can judge nothing; did you mean 'assistant'?",
    ),
    "a judge that does not chat": (
        "      - name: assistant\n",
        "      - {name: text, task: llm/v1/completions, served_entities: [{model: demo-chat, version: 1}]}\n"
        "      - name: assistant\n"
        "        ai_gateway: {guardrails: {model: text, input: {safety: true}}}\n",
        "applications[0].deployments[0].user_config.endpoints[1].ai_gateway.guardrails.model",
        "the endpoint 'text' cannot judge: its task is llm/v1/completions, not llm/v1/chat",
    ),
}

# What these are about is all wrong then, and said so.
CASCADES = {"no gateway", "two applications of one name", "a model called as the gateway"}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_what_to_write_instead(mistake: str) -> None:
    written, instead, where, message = MISTAKES[mistake]
    assert RIGHT.count(written) >= 1
    found = problems(RIGHT.replace(written, instead, 1))
    errors = [problem for problem in found if problem.severity is Severity.ERROR]
    named = [problem for problem in errors if where in problem.where and message in problem.message]
    assert named, "\n".join(map(str, found))
    assert len(errors) == 1 or mistake in CASCADES
    assert named[0].where.startswith(where) or not where.startswith("applications")


WARNINGS = {
    "a model that no endpoint uses": (
        "        - {name: b, model: demo-chat, version: 2}\n        traffic: {a: 90, b: 10}\n",
        "",
        "applications[2] (application 'model-demo-chat_v_2')",
        "add it to an endpoint's served_entities, or remove it",
    ),
    "fewer calls than the engine takes": (
        "  - name: Model\n",
        "  - name: Model\n    max_ongoing_requests: 5\n",
        "applications[1].deployments[0].max_ongoing_requests",
        "8 max_sequences + 8 max_waiting = 16",
    ),
    "fewer calls than the gateway takes": (
        "max_ongoing_requests: 264",
        "max_ongoing_requests: 50",
        "applications[0].deployments[0].max_ongoing_requests",
        "lower max_in_flight",
    ),
    "a judge that the file does not have": (
        "{max_in_flight: 100}",
        "{max_in_flight: 100, guardrails_model: asistant}",
        "applications[0].args.guardrails_model",
        "so it can judge nothing, unless one is made at run time; did you mean 'assistant'?",
    ),
    "a GPU that is not used": (
        "device: cpu}",
        "device: cpu}\n  deployments: [{name: Model, ray_actor_options: {num_gpus: 1}}]",
        "applications[2].deployments[0].ray_actor_options.num_gpus",
        "write `device: cuda`",
    ),
}


@pytest.mark.parametrize("doubt", WARNINGS)
def test_what_may_be_deployed_and_is_hardly_meant_is_a_warning(doubt: str) -> None:
    written, instead, where, message = WARNINGS[doubt]
    assert RIGHT.count(written) == 1
    (found,) = problems(RIGHT.replace(written, instead))
    assert found.severity is Severity.WARNING
    assert found.where.startswith(where)
    assert message in found.message


@pytest.mark.parametrize("own", ["", "model: assistant, "])
def test_a_judge_of_the_gateway_or_of_the_endpoint_is_enough(own: str) -> None:
    judged = f"name: assistant\n        ai_gateway: {{guardrails: {{{own}input: {{safety: true}}}}}}\n"
    file = RIGHT.replace("name: assistant\n", judged)
    if not own:
        file = file.replace("max_in_flight: 100", "max_in_flight: 100, guardrails_model: assistant")
        assert "guardrails_model" in file
    assert problems(file) == []


def test_a_gateway_without_endpoints_is_a_warning() -> None:
    without = re.sub(r"    user_config:.*?(?=  - name: Limiter)", "", RIGHT, flags=re.S)
    (found,) = problems(without)
    assert (found.severity, "endpoints: [{name: ...}]" in found.message) == (Severity.WARNING, True)


def test_all_mistakes_are_told_at_once() -> None:
    wrong = RIGHT
    for mistake in ("no host", "an unknown argument", "traffic that does not add up", "a model with a route"):
        written, instead, _, _ = MISTAKES[mistake]
        wrong = wrong.replace(written, instead, 1)
    assert len(problems(wrong)) == 4


@pytest.mark.parametrize("empty", ["", "[]", "applications:", "applications: []", "applications: {}", "7"])
def test_a_file_without_applications_is_an_error(empty: str) -> None:
    assert any(problem.severity is Severity.ERROR for problem in problems(empty))


def test_the_names_of_deployments_are_those_that_are_built() -> None:
    from ray.serve._private.build_app import build_app

    for builder, config in (
        (build.build_system_app, GatewayConfig()),
        (build.build_model_app, ModelConfig(name="demo-chat")),
    ):
        names = {deployment.name for deployment in build_app(builder(config), name="a").deployments}
        assert names == set(App(Place(), {}, builder, config).built)


@pytest.mark.parametrize(
    ("written", "instead", "line"),
    [
        ("port: 8000", "prot: 8000", 3),
        ("host: 127.0.0.1, ", "", 3),  # a field that is missing: the line of what it belongs in
        ("max_in_flight: 100", "max_in_fligt: 100", 8),
        ("max_in_flight: 100", "max_in_flight: many", 8),
        ("traffic: {a: 90, b: 10}", "traffic: {a: 90, a: 10}", 19),
        ("policy_function:", "policy_functoin:", 35),
        ("http_options: {", "http_options: {{", 4),  # where the parser noticed it
        ("args: {name: demo-chat, provisioned", "? [a]\n  : {name: demo-chat, provisioned", 43),
    ],
)
def test_a_problem_has_the_line_of_its_field(written: str, instead: str, line: int) -> None:
    found = problems(RIGHT.replace(written, instead, 1))
    assert next(problem.line for problem in found if problem.severity is Severity.ERROR) == line
    assert f"line {line}: " in str(found[0])
    assert found[0].of("a.yaml").startswith(f"a.yaml:{line}: error: ")


def test_a_file_without_a_field_or_text_has_no_line() -> None:
    (found,) = [problem for problem in problems("") if "applications" in problem.where]
    assert found.line is None
    assert found.of("a.yaml").startswith("a.yaml: error: applications: ")


def test_an_error_travels_between_processes(tmp_path: Path) -> None:
    with pytest.raises(DeployFileError) as caught:
        load(tmp_path / "none.yaml")
    builder: Callable[..., Any]
    builder, arguments = caught.value.__reduce__()
    assert builder(*arguments).problems == caught.value.problems


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(SCALARS, inner, max_size=2),
    max_leaves=4,
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below: list[tuple[Any, ...]] = [path]
    if isinstance(value, dict):
        below += [place for key in value for place in places(value[key], (*path, key))]
    elif isinstance(value, list):
        below += [place for index in range(len(value)) for place in places(value[index], (*path, index))]
    return below


PLACES = places(yaml.safe_load(RIGHT))


@given(place=st.sampled_from(PLACES), value=VALUES)
def test_whatever_stands_anywhere_the_check_answers(place: tuple[Any, ...], value: object) -> None:
    raw = {"": yaml.safe_load(RIGHT)}
    at: Any = raw
    for part in ("", *place)[:-1]:
        at = at[part]
    at[("", *place)[-1]] = value
    for problem in problems(raw[""]):
        assert problem.message
        assert isinstance(str(problem), str)
