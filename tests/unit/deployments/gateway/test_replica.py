import logging
from types import SimpleNamespace

import pytest

from serve_app.api.directory import Directory
from serve_app.deployments.environment import PUBLIC_HOST
from serve_app.deployments.gateway import replica as gateway
from serve_app.deployments.gateway.backend import total
from serve_app.endpoints.catalogue import parse_catalogue
from serve_app.types import EngineStats


@pytest.mark.parametrize(
    ("host", "safe"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.org", False),
        (None, False),
    ],
)
def test_only_a_loopback_host_makes_every_peer_local(
    monkeypatch: pytest.MonkeyPatch, host: str | None, safe: bool
) -> None:
    client = SimpleNamespace(http_config=SimpleNamespace(host=host))
    monkeypatch.delenv(PUBLIC_HOST, raising=False)
    monkeypatch.setattr(gateway, "_get_global_client", lambda: client)
    assert gateway.listens_on_loopback() is safe


@pytest.mark.parametrize(
    ("serve", "haproxy", "listens"),
    [
        ("127.0.0.1", "0.0.0.0", "0.0.0.0"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1", "0.0.0.0"),  # left from another start: Serve itself is public
    ],
)
def test_behind_our_haproxy_its_host_is_the_one_that_counts(
    monkeypatch: pytest.MonkeyPatch, serve: str, haproxy: str, listens: str
) -> None:
    client = SimpleNamespace(http_config=SimpleNamespace(host=serve))
    monkeypatch.setattr(gateway, "_get_global_client", lambda: client)
    monkeypatch.setenv(PUBLIC_HOST, haproxy)
    assert gateway.http_host() == listens
    assert gateway.listens_on_loopback() is (listens == "127.0.0.1")


def test_an_unknown_host_counts_as_public(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError

    monkeypatch.setattr(gateway, "_get_global_client", fail)
    assert not gateway.listens_on_loopback()


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (None, []),
        ("talk", []),
        ("nobody", ["guardrails_model: there is no endpoint 'nobody', so it can judge nothing"]),
        ("embed", ["the endpoint 'embed' cannot judge: its task is llm/v1/embeddings, not llm/v1/chat"]),
    ],
)
def test_a_server_wide_judge_that_cannot_judge_is_said_at_the_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, judge: str | None, said: list[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("serve_app"), "propagate", True)
    directory = Directory(
        parse_catalogue({"endpoints": [{"name": "talk"}, {"name": "embed", "task": "llm/v1/embeddings"}]})
    )
    gateway.warn_of_judge(directory, judge)
    assert len(caplog.records) == len(said)
    for record, part in zip(caplog.records, said, strict=True):
        assert (record.levelname, part in record.getMessage()) == ("WARNING", True)
        assert record.getMessage().endswith("requests that it should judge get 503")


def test_statistics_of_replicas_add_up_and_the_oldest_heartbeat_counts() -> None:
    parts = [
        EngineStats(running=1, blocks_total=10, heartbeat_age_s=0.5),
        EngineStats(running=2, blocks_total=10, heartbeat_age_s=2.0),
    ]
    assert total(parts) == EngineStats(running=3, blocks_total=20, heartbeat_age_s=2.0)


def test_the_statistics_of_no_replica_are_zero() -> None:
    assert total([]) == EngineStats()
