from types import SimpleNamespace
from typing import Any

from serve_app.deployments.scaling import by_sequences


def context(sequences: dict[str, float], max_sequences: float, queued: float = 0.0) -> Any:
    return SimpleNamespace(
        aggregated_metrics={
            "sequences": sequences,
            "max_sequences": dict.fromkeys(sequences, max_sequences),
        },
        total_queued_requests=queued,
        target_num_replicas=3,
    )


def test_full_batches_ask_for_more_replicas() -> None:
    assert by_sequences(context({"a": 64.0, "b": 64.0}, 64.0), target_load=0.5)[0] == 4.0


def test_requests_that_queue_at_gateways_count() -> None:
    assert by_sequences(context({"a": 0.0}, 10.0, queued=20.0), target_load=1.0)[0] == 2.0


def test_idle_replicas_may_all_go() -> None:
    assert by_sequences(context({"a": 0.0, "b": 0.0}, 64.0))[0] == 0.0


def test_nothing_changes_before_the_first_report() -> None:
    assert by_sequences(context({}, 64.0))[0] == 3
