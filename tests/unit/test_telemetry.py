"""Metric pages and log lines."""

import json
import logging

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from serve_app.live.latencies import fine
from serve_app.telemetry import JsonFormatter, Metrics
from serve_app.telemetry.absent import KEPT_S, Absent
from serve_app.telemetry.collectors import StreamHistogram
from serve_app.types import EngineStats, Usage


def record(message, *args, **extra):
    made = logging.LogRecord("serve_app.x", logging.INFO, "f", 1, message, args, None)
    made.__dict__.update(extra)
    return made


def test_a_log_line_is_one_json_object_whatever_it_says():
    line = JsonFormatter().format(record("a %s", 'b"\n\x1b[31m', fields={"model": "demo\n", "n": 3}))
    assert "\n" not in line
    assert "\x1b" not in line
    entry = json.loads(line)
    assert (entry["level"], entry["message"], entry["n"]) == ("info", 'a b"\n\x1b[31m', 3)


def test_engine_snapshots_are_read_at_each_scrape():
    stats = {"model-demo": EngineStats(running=1)}
    metrics = Metrics(lambda: stats)
    assert b'serve_app_running_sequences{application="model-demo"} 1.0' in metrics.render()
    stats["model-demo"] = EngineStats(running=5, preemptions=2)
    page = metrics.render()
    assert b'serve_app_running_sequences{application="model-demo"} 5.0' in page
    assert b'serve_app_preemptions_total{application="model-demo"} 2.0' in page


def test_answers_that_went_on_elsewhere_are_counted_by_cause():
    counts = {("model-demo", "killed"): 2}
    metrics = Metrics(dict)
    metrics.migrations(lambda: counts)
    counts["model-demo", "leaving"] = 1
    page = metrics.render()
    assert b'serve_app_migrations_total{application="model-demo",cause="killed"} 2.0' in page
    assert b'serve_app_migrations_total{application="model-demo",cause="leaving"} 1.0' in page


def test_requests_without_a_known_model_have_no_latency_series():
    metrics = Metrics(dict)
    metrics.request_done("unknown", "unknown", "/v1/completions", "404", 0.1)
    page = metrics.render()
    labels = b'endpoint="unknown",entity="unknown",route="/v1/completions",status="404"'
    assert b"serve_app_requests_total{" + labels + b"} 1.0" in page
    assert b"serve_app_request_seconds_count" not in page


def test_tokens_and_times_add_up():
    metrics = Metrics(dict)
    metrics.tokens("demo", "demo", Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1))
    timings = metrics.timings("demo", "demo")
    assert metrics.timings("demo", "demo") is timings
    timings.queue(0.25)
    page = metrics.render()
    assert b'serve_app_prompt_tokens_total{endpoint="demo",entity="demo"} 3.0' in page
    assert b'serve_app_queue_seconds_sum{endpoint="demo",entity="demo"} 0.25' in page
    assert b'serve_app_queue_seconds_count{endpoint="demo",entity="demo"} 1.0' in page


def test_series_of_entities_that_left_the_catalogue_end_an_hour_later() -> None:
    now, catalogue = 0.0, {"chat": ["old", "new"], "gone": ["gone"]}
    metrics = Metrics(dict, Absent(lambda: now))
    metrics.catalogue(lambda: catalogue)
    ended: list[tuple[str, str]] = []
    metrics.on_ended = ended.append
    for endpoint, entity in (("chat", "old"), ("chat", "new"), ("gone", "gone"), ("gone", "unknown")):
        metrics.timings(endpoint, entity).first(0.1)
        metrics.tokens(endpoint, entity, Usage(prompt_tokens=3))
        metrics.request_done(endpoint, entity, "/v1/chat/completions", "200", 0.1)
    metrics.request_done("chat", "unknown", "/v1/chat/completions", "400", 0.1)
    metrics.request_done("unknown", "unknown", "/v1/chat/completions", "404", 0.1)
    for endpoint in catalogue:
        metrics.guardrail(endpoint, "input", "keywords")
    before = metrics.render()
    catalogue = {"chat": ["new"]}
    assert metrics.render() == before  # from here on they are missed
    now = KEPT_S - 1
    catalogue = {"chat": ["new", "old"]}
    metrics.render()
    catalogue = {"chat": ["new"]}
    now = KEPT_S + 1
    page = metrics.render()
    assert b'endpoint="gone"' not in page
    assert page.count(b'entity="old"') == before.count(b'entity="old"')  # it was back in between
    now += KEPT_S
    page = metrics.render()
    assert b'entity="old"' not in page
    for label in (b'entity="new"', b'endpoint="chat",entity="unknown"', b'endpoint="unknown"'):
        assert page.count(label) == before.count(label) > 0
    assert b'serve_app_guardrails_triggered_total{check="keywords",endpoint="chat",side="input"} 1.0' in page
    assert list(metrics.answered) == [("chat", "new")]
    assert set(ended) == {("gone", "gone"), ("gone", "unknown"), ("chat", "old")}
    # It comes back, and counts from nothing.
    catalogue = {"chat": ["new", "old"]}
    metrics.tokens("chat", "old", Usage(prompt_tokens=5))
    assert b'serve_app_prompt_tokens_total{endpoint="chat",entity="old"} 5.0' in metrics.render()


def test_what_only_judged_or_stopped_prompts_ends_too_and_a_late_request_is_kept_an_hour_again() -> None:
    now, catalogue = 0.0, {"judge": ["judge"], "guarded": ["a"]}
    metrics = Metrics(dict, Absent(lambda: now))
    metrics.catalogue(lambda: catalogue)
    metrics.tokens("judge", "judge", Usage(prompt_tokens=3))
    metrics.guardrail("guarded", "input", "keywords")
    metrics.request_done("guarded", "a", "/v1/chat/completions", "200", 0.1)
    catalogue = {"guarded": ["b"]}
    metrics.render()
    now = KEPT_S - 1
    catalogue = {}
    metrics.render()
    now = KEPT_S
    page = metrics.render_endpoint("guarded", ()) + metrics.render_endpoint("judge", ())
    assert b'entity="a"' not in page
    assert b'endpoint="judge"' not in page
    assert b"serve_app_guardrails_triggered_total" in page  # the endpoint itself left a second ago
    metrics.tokens("judge", "judge", Usage(prompt_tokens=3))  # of a request that was under way
    assert b'endpoint="judge"' in metrics.render()
    now = 2 * KEPT_S
    assert b"endpoint=" not in metrics.render()


def test_two_gateways_in_one_process_do_not_share_a_registry():
    assert Metrics(dict).registry is not Metrics(dict).registry


def test_a_stream_histogram_says_what_a_histogram_of_the_library_says() -> None:
    bounds = (0.001, 0.01, 1.0)
    library, ours = CollectorRegistry(), CollectorRegistry()
    expected = Histogram("wait_seconds", "A wait.", ["who"], buckets=bounds, registry=library)
    found = StreamHistogram("wait_seconds", "A wait.", ["who"], bounds, fine(bounds))
    ours.register(found)
    for seconds in (0.0, 0.001, 0.0011, 0.01, 0.5, 1.0, 1.5, 100.0):
        for who in ("a", "b"):
            expected.labels(who).observe(seconds)
            found.labels(who).observe(seconds)
    lines = [each for each in generate_latest(library).splitlines() if b"_created" not in each]
    assert generate_latest(ours).splitlines() == lines
    with pytest.raises(ValueError, match="Duplicated"):
        Histogram("wait_seconds", "Another.", registry=ours)
