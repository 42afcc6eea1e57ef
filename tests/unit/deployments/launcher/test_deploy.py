"""When a server is ready: all of its gateways must say so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from serve_app.deployments.environment import free_port
from serve_app.deployments.launcher import deploy
from serve_app.deployments.launcher.deploy import until_ready
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.gateways import num_gateways


@contextmanager
def answering(*statuses: int, body: str = "") -> Iterator[tuple[int, list[int]]]:
    """A port whose answers have these statuses in turn, the last one for ever; and those that it gave.

    `body`: of those that are not 200.
    """
    given: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.append(statuses[min(len(given), len(statuses) - 1)])
            self.send_response(given[-1])
            text = b"" if given[-1] == 200 else body.encode()
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port, given
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_one_of_two_gateways_is_not_enough() -> None:
    with answering(200, 503, 200, 503, 503, 200, 200) as (port, given):
        until_ready("127.0.0.1", port, 2)
    assert given == [200, 503, 200, 503, 503, 200, 200]


def test_one_gateway_is_asked_until_it_is_ready() -> None:
    with answering(503, 200) as (port, given):
        until_ready("127.0.0.1", port)
    assert given == [503, 200]


def test_a_reason_to_give_up_ends_the_wait() -> None:
    with answering(503) as (port, _), pytest.raises(CannotServe, match="stopped"):
        until_ready("127.0.0.1", port, cancelled=lambda: "stopped")


NOT_READY = {"status": "not ready", "reasons": ["keys are not known", "the database /x/control.db is broken"]}


def test_reasons_that_last_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "SILENT_S", 0.0)
    said: list[str] = []
    with answering(*[503] * 4, 200, body=json.dumps(NOT_READY)) as (port, _):
        until_ready("127.0.0.1", port, say=said.append)
    assert said == [
        "not ready yet: keys are not known",
        "not ready yet: the database /x/control.db is broken",
        deploy.WAITS,
    ]


def test_reasons_of_a_moment_are_not_said() -> None:
    said: list[str] = []
    with answering(503, 503, 200, body=json.dumps(NOT_READY)) as (port, _):
        until_ready("127.0.0.1", port, say=said.append)
    assert said == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (json.dumps(NOT_READY), "keys are not known\nthe database /x/control.db is broken"),
        ('{"status": "not ready"}', "who have an API key"),
        ("Service Unavailable", "no gateway answers"),
        ('["no object"]', "no gateway answers"),
    ],
)
def test_the_wait_ends_with_the_reasons(body: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "READY_S", 0.2)
    with answering(503, body=body) as (port, _), pytest.raises(CannotServe, match=words):
        until_ready("127.0.0.1", port)


def test_a_port_where_nobody_answers_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "READY_S", 0.0)
    with pytest.raises(CannotServe, match="no gateway answers"):
        until_ready("127.0.0.1", free_port())


@pytest.mark.parametrize(
    ("entry", "count"),
    [
        ({}, 1),
        ({"num_replicas": 3}, 3),
        ({"num_replicas": "auto"}, 1),
        ({"autoscaling_config": {"min_replicas": 2, "max_replicas": 4}}, 2),
        ({"autoscaling_config": {"min_replicas": 0}}, 1),
    ],
)
def test_a_file_says_with_how_many_gateways_it_begins(entry: dict[str, Any], count: int) -> None:
    other = {"name": "model", "deployments": [{"name": "Model", "num_replicas": 9}]}
    system = {"name": "system", "deployments": [{"name": "Gateway", **entry}]}
    assert num_gateways({"applications": [other, system]}) == count
    assert num_gateways({"applications": [other]}) == 1
