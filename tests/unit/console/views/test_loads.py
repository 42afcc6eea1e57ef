from __future__ import annotations

from typing import Any

from serve_app.console.views.loads import load_views


def entity(name: str, app: str | None, **rates: float) -> dict[str, Any]:
    none = {"p50": None, "p95": None, "p99": None}
    window = {"requests_per_s": 0.0, "tokens_per_s": 0.0, "errors_per_s": 0.0, "in_flight": 0}
    return {"entity": name, "application": app, "window": {**window, "first_token_s": none, **rates}}


def test_entities_with_the_replicas_and_the_queue_of_their_applications() -> None:
    answer = {
        "endpoints": [
            {"endpoint": "other", "entities": [entity("x", "a")]},
            {"endpoint": "talk", "entities": [entity("v1", "a", tokens_per_s=12.5), entity("gone", None)]},
        ],
        "applications": [{"application": "a", "replicas": 2, "running": 3, "waiting": 1, "kv_use": 0.25}],
    }
    first, gone = load_views(answer, "talk")
    assert (first.entity, first.replicas, first.running, first.waiting, first.kv_use) == ("v1", 2, 3, 1, 0.25)
    assert (first.tokens_per_s, first.first_token_s) == (12.5, None)
    assert (gone.entity, gone.replicas) == ("gone", None)
    assert load_views({}, "talk") == []
