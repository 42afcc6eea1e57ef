"""Figures of slots: rates over a window, points of a series, loads of applications."""

from __future__ import annotations

import pytest

from serve_app.live.figures import History, Load
from serve_app.live.latencies import FINE_LONG, FINE_SHORT, LatencyCounts, since
from serve_app.types.control.live import SLOT_S, EntityCounts, LiveSlot, ReplicaLoad

A, B = ("chat", "a"), ("chat", "b")


def counts(who: tuple[str, str], **fields: object) -> EntityCounts:
    return EntityCounts(endpoint=who[0], entity=who[1], **fields)  # type: ignore[arg-type]


def buckets(bounds: tuple[float, ...], *seconds: float) -> dict[int, int]:
    found = LatencyCounts(bounds)
    for each in seconds:
        found.observe(each)
    return since(found.counts, ())


def test_a_window_has_the_rates_of_its_seconds_and_the_latencies_of_all_in_it() -> None:
    history = History(
        [
            LiveSlot(number=9, entities=(counts(A, requests=1000),)),
            LiveSlot(
                number=10,
                entities=(
                    counts(A, requests=4, errors=1, refused=2, first_token=buckets(FINE_LONG, 0.2, 0.2)),
                    counts(B, completion_tokens=80, in_flight=7),
                ),
            ),
            LiveSlot(
                number=12,
                entities=(
                    counts(A, requests=2, in_flight=1, inter_token=buckets(FINE_SHORT, 0.03)),
                    counts(B, prompt_tokens=6, in_flight=2, first_token=buckets(FINE_LONG, 2.0)),
                ),
            ),
            LiveSlot(number=13, entities=(counts(A, requests=1000),)),
        ],
        newest=12,
    )
    found = history.window([A, B], 3 * SLOT_S)
    assert (found.requests_per_s, found.errors_per_s, found.refused_per_s) == (1.0, 1 / 6, 2 / 6)
    assert (found.tokens_per_s, found.prompt_tokens_per_s) == (80 / 6, 1.0)
    assert found.in_flight == 3  # now, and not what it was before
    assert found.first_token_s.p50 == pytest.approx(0.2, rel=0.2)
    assert found.first_token_s.p99 == pytest.approx(2.0, rel=0.2)
    assert found.inter_token_s.p50 == pytest.approx(0.03, rel=0.2)
    assert history.window([A], SLOT_S).requests_per_s == 1.0
    assert history.window([("chat", "other")], 60.0).first_token_s.p50 is None


def test_a_series_has_a_point_for_each_slot_also_for_an_empty_one() -> None:
    history = History(
        [
            LiveSlot(number=10, entities=(counts(A, requests=4), counts(B, requests=2))),
            LiveSlot(number=12, entities=(counts(B, in_flight=2),)),
        ],
        newest=12,
    )
    assert [point.requests_per_s for point in history.series([A, B], range(9, 13))] == [0.0, 3.0, 0.0, 0.0]
    assert [point.in_flight for point in history.series([B], range(9, 13))] == [0, 0, 0, 2]
    assert history.entities == (A, B)


def test_replicas_of_an_application_are_summed() -> None:
    replicas = {
        "r1": ReplicaLoad(app="app", running=1, waiting=2, blocks_total=10, blocks_used=4),
        "r2": ReplicaLoad(app="app", running=3, blocks_total=10, blocks_used=5),
        "r3": ReplicaLoad(app="other", running=9, blocks_total=10),
    }
    history = History([LiveSlot(number=5, replicas=replicas)], newest=5)
    expected = Load(running=4, waiting=2, blocks_total=20, blocks_used=9)
    assert history.load("app") == expected
    assert expected.kv_use == 0.45
    assert history.loads("app", range(4, 6)) == [Load(), expected]
    assert history.load("third") is None
    assert Load().kv_use is None
