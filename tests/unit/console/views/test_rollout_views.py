from __future__ import annotations

from typing import Any

import pytest

from serve_app.console.views.comparison import comparison_view, metrics_of
from serve_app.console.views.rollouts import fields_of, rollout_body, rollout_view, shadow_body
from tests.support.console_forms import form_of

ROLLOUT: dict[str, Any] = {
    "endpoint": "talk",
    "entity": "new",
    "state": "RUNNING",
    "message": "12 of 20 requests",
    "steps": [5, 25, 100],
    "step": 1,
    "percentage": 25,
    "interval_s": 60.0,
    "guards": {"max_error_rate": 0.05, "max_first_token_s": None, "max_total_s": 10, "min_requests": 20},
    "former_traffic": {"old": 100, "new": 0},
    "start_timestamp": 1_000,
    "last_updated_timestamp": 2_000,
}
NOTHING = {"count": 0, "mean": None, "low": None, "high": None}


def estimate(mean: float, low: float, high: float, count: int = 100) -> dict[str, Any]:
    return {"count": count, "mean": mean, "low": low, "high": high}


def report() -> dict[str, Any]:
    empty = dict.fromkeys(("first_token_s", "total_s", "prompt_tokens", "completion_tokens"), NOTHING)
    old = {
        "error_rate": estimate(0.0123, 0.001, 0.05),
        **empty,
        "feedback": {"thumbs": estimate(0.5, 0.4, 0.6)},
    }
    new = {"error_rate": NOTHING, **empty, "feedback": {}}
    outcomes = {"finished": 99, "failed": 1, "lost": 0}
    return {
        "endpoint": "talk",
        "since_timestamp": 5,
        "confidence": 0.95,
        "entities": [
            {"entity": "old", "shadow": False, "requests": 100, "outcomes": outcomes, **old},
            {"entity": "new", "shadow": True, "requests": 0, "outcomes": {}, **new},
        ],
        "tests": [
            {
                "metric": "total_s",
                "entity": "new",
                "shadow": True,
                "against": "old",
                "difference": estimate(0.25, -0.1, 1.5),
                "p_value": 0.0004,
                "is_significant": True,
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("state", "step", "progress"),
    [
        ("RUNNING", 1, ["past", "current", "to come"]),
        ("DONE", 2, ["past", "past", "past"]),
        ("ROLLED_BACK", 0, ["current", "to come", "to come"]),
    ],
)
def test_a_rollout_and_its_steps(state: str, step: int, progress: list[str]) -> None:
    view = rollout_view({**ROLLOUT, "state": state, "step": step})
    assert [each.progress for each in view.steps] == progress
    assert view.is_running == (state == "RUNNING")
    assert view.guards == (
        ("failed requests", "at most 5 %"),
        ("whole answer, 95th percentile", "at most 10 s"),
        ("requests in a step", "at least 20"),
    )


def test_the_body_that_starts_a_rollout() -> None:
    fields = fields_of()
    form = form_of([("entity", "new"), *((name, text) for name, text in fields.items() if name != "entity")])
    assert rollout_body(form) == {
        "entity": "new",
        "steps": [5, 25, 50, 100],
        "interval_s": 60,
        "guards": {"max_error_rate": 0.05, "min_requests": 20},
    }
    wrong = form_of(
        [("entity", "new"), ("steps", "5, many"), ("interval_s", "soon"), ("guards.max_total_s", "-1")]
    )
    assert rollout_body(wrong) == {
        "entity": "new",
        "steps": [5, "many"],
        "interval_s": "soon",
        "guards": {"max_total_s": -1},
    }
    assert fields_of(wrong)["steps"] == "5, many"
    assert shadow_body(form_of([("entity", "new"), ("percentage", "10")])) == {
        "entity": "new",
        "percentage": 10,
    }


def test_a_comparison_in_words() -> None:
    view = comparison_view(report())
    old, new = view.columns
    assert view.rows[0] == "failed requests"
    assert view.rows[-1] == "feedback: thumbs"
    assert (old.measured[0].mean, old.measured[0].interval) == ("1.23 %", "0.1 % to 5 %")
    assert old.outcomes == (("finished", 99), ("failed", 1))
    assert (new.measured[0].mean, new.measured[0].interval, new.is_shadow) == ("–", "", True)
    assert len(old.measured) == len(new.measured) == len(view.rows)
    (test,) = view.tests
    assert (test.metric, test.difference.mean, test.p_value) == ("whole answer", "+250 ms", "below 0.001")
    assert test.difference.interval == "-100 ms to 1.5 s"
    assert view.requests == 100


def test_the_metrics_that_may_be_tested() -> None:
    assert metrics_of(None)[0] == ("error_rate", "failed requests")
    assert metrics_of(report())[-1] == ("thumbs", "feedback: thumbs")
