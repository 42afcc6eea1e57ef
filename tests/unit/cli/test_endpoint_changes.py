"""Endpoints made, changed, looked at and removed from the command line, over a socket."""

import json

import pytest

from serve_app.cli.endpoints.api import until_settled
from serve_app.cli.server import Server, ServerError
from serve_app.types.control import CreateEndpoint, UpdateConfig
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import fake_app


@pytest.fixture
def management():
    return FakeManagement()


@pytest.fixture
def managed(serve, backend, management, monkeypatch):
    """The URL of a gateway with a control plane; nobody waits between two looks."""
    monkeypatch.setattr("serve_app.cli.endpoints.api.POLL_S", 0.0)
    return serve(fake_app(backend, management=management))


@pytest.fixture
def run(invoke, managed):
    def endpoints(*arguments, code=0):
        result = invoke("endpoints", *arguments, "--url", managed)
        assert result.exit_code == code, result.output
        return result

    return endpoints


def last(management, kind):
    return [command for command in management.commands if isinstance(command, kind)][-1]


def test_create_waits_and_tells_what_happens(run, management):
    result = run(
        "create", "talk", "harbor-8b@1", "harbor-8b@2", "--units", "50", "--task", "chat",
        "--traffic", "harbor-8b-1=90", "--traffic", "harbor-8b-2=10", "--tag", "team=sea",
        "--description", "x",
    )  # fmt: skip
    assert result.stdout == "talk is ready: harbor-8b-1 90 %, harbor-8b-2 10 %\n"
    assert result.stderr.splitlines() == [
        "harbor-8b-1: creating",
        "harbor-8b-2: creating",
        "harbor-8b-1: ready",
        "harbor-8b-2: ready",
    ]
    command = last(management, CreateEndpoint)
    assert command.is_provisioned
    assert command.task == "llm/v1/chat"
    assert (command.tags, command.description) == ({"team": "sea"}, "x")
    assert [each.provisioned_model_units for each in command.config.entities] == [50, 50]
    assert command.config.traffic == {"harbor-8b-1": 90, "harbor-8b-2": 10}


def test_a_file_has_what_options_have_not(run, management, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"ai_gateway": {"fallback_config": {"enabled": False}}}))
    run("create", "talk", "org/harbor", "--file", body)
    command = last(management, CreateEndpoint)
    assert command.ai_gateway == {"fallback_config": {"enabled": False}}
    assert (command.config.entities[0].entity_name, command.config.entities[0].entity_version) == (
        "org/harbor",
        "",
    )


def test_without_waiting_the_state_is_told(run):
    assert run("create", "talk", "m@1", "--no-wait").output == "talk is not ready: m-1 100 %\n"


def test_a_failure_says_why_and_what_to_do(run, management):
    management.failure = "the model needs 3 processors and 2 are free: stop another endpoint"
    result = run("create", "talk", "m@1", code=1)
    assert "stop another endpoint" in result.stderr
    assert "serve-app endpoints logs talk --build" in result.stderr


def test_a_refusal_is_the_servers_own(run):
    assert "name: must be 1 to 63 characters" in run("create", "a b", "m", code=1).stderr
    run("create", "talk", "m")
    assert "an endpoint talk exists (HTTP 409)" in run("create", "talk", "m", code=1).stderr
    assert "there is no endpoint nobody" in run("get", "nobody", code=1).stderr
    assert "nothing to change" in run("update", "talk", code=2).stderr
    assert "must be like ENTITY=PERCENT" in run("update", "talk", "--traffic", "m", code=2).stderr
    assert "from 0 to 100" in run("update", "talk", "--traffic", "m=101", code=2).stderr


def test_update_takes_other_models_another_size_or_another_split(run, management):
    run("create", "talk", "m@1", "--units", "50", "--scale-to-zero")
    run("update", "talk", "--units", "100")
    (entity,) = last(management, UpdateConfig).config.entities
    assert (entity.provisioned_model_units, entity.scale_to_zero_enabled, entity.name) == (100, True, "m-1")
    run("update", "talk", "m@1", "m@2", "--units", "100", "--traffic", "m-1=100", "--traffic", "m-2=0")
    assert last(management, UpdateConfig).config.traffic == {"m-1": 100, "m-2": 0}
    moved = run("promote", "talk", "m-2")
    assert moved.stdout == "talk is ready: m-1 0 %, m-2 100 %\n"
    assert [each.entity_version for each in last(management, UpdateConfig).config.entities] == ["1", "2"]
    assert "talk has no served entity m-3; there is: m-1, m-2" in run("promote", "talk", "m-3", code=1).stderr


def test_get_shows_what_serves(run):
    run("create", "talk", "m@1", "--size", "Small")
    shown = run("get", "talk").stdout
    assert "kind:        provisioned_throughput" in shown
    assert "state:       READY, NOT_UPDATING" in shown
    assert "m-1" in shown
    assert "100 %" in shown
    assert json.loads(run("get", "talk", "--format", "json").stdout)["name"] == "talk"


def test_logs_of_one_entity_or_of_all(run):
    run("create", "talk", "m@1", "m@2", "--traffic", "m-1=100", "--traffic", "m-2=0")
    assert run("logs", "talk", "m-1").stdout == "m-1 serves\n"
    assert run("logs", "talk", "--build").stdout == "==> m-1 <==\nm-1 was built\n==> m-2 <==\nm-2 was built\n"
    assert "talk has no served entity x" in run("logs", "talk", "x", code=1).stderr


def test_delete(run):
    run("create", "talk", "m")
    assert run("delete", "talk").stdout == "talk is removed\n"
    assert "there is no endpoint talk" in run("delete", "talk", code=1).stderr


def test_the_list_is_a_command_too(run, invoke, managed):
    assert run("list").stdout == run().stdout
    result = invoke("endpoints", "--url", managed, "get", "talk")
    assert result.exit_code == 2
    assert "options go after the command: serve-app endpoints get" in result.stderr


def test_a_wait_outlives_a_gateway_that_is_taken_over(monkeypatch):
    up = {"name": "talk", "state": {"config_update": "NOT_UPDATING"}}
    coming = {"name": "talk", "state": {"config_update": "IN_PROGRESS"}}
    looks = iter([ServerError("busy", 503), ServerError("nobody there"), coming, up])

    def look(server, name):
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("serve_app.cli.endpoints.api.read", look)
    server = Server("http://nowhere")
    assert until_settled(server, coming, 5.0, print, sleep=lambda seconds: None) == up
    times = iter([0.0, 1.0, 9.0])
    looks = iter([coming])
    with pytest.raises(ServerError, match="talk is not up after 5 s"):
        until_settled(server, coming, 5.0, print, lambda: next(times), lambda seconds: None)
