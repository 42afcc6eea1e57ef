"""Rollouts over a real database: forward while all is well, back by themselves, and through restarts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from serve_app.control.database.database import Database
from serve_app.control.rollouts.rollouts import Rollouts
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.errors import Conflict, InvalidField, ModelNotFound
from serve_app.types.control import (
    GetRollout,
    Guards,
    PutShadow,
    RolloutShown,
    RolloutState,
    StartRollout,
    StopRollout,
)
from tests.support.rollouts import RolloutBench, busy, usage_row

START = StartRollout(endpoint="chat", entity="new")


@pytest.fixture
def bench(database: Database) -> RolloutBench:
    return RolloutBench(database)


async def run(bench: RolloutBench, looks: int = 400, per_look: int = 40, **fields: Any) -> RolloutShown:
    """Requests and looks, six seconds apart, until the rollout ends."""
    for _ in range(looks):
        bench.now += 6
        await bench.serve(per_look, **fields)
        await bench.rollouts.look()
        shown = await bench.do(GetRollout(endpoint="chat"))
        if shown.state is not RolloutState.RUNNING:
            break
    return shown


async def test_an_entity_that_fails_a_fifth_of_its_requests_is_moved_back_by_itself(
    bench: RolloutBench,
) -> None:
    assert (await bench.do(START)).state is RolloutState.RUNNING
    assert bench.traffic == {"old": 95, "new": 5}
    ended = await run(bench, error_rate={"new": 0.2, "old": 0.01})
    assert ended.state is RolloutState.ROLLED_BACK, ended.message
    assert "a guard is broken: failed in" in ended.message
    assert bench.traffic == {"old": 100}


async def test_a_good_entity_reaches_all_of_the_traffic(bench: RolloutBench) -> None:
    await bench.do(START)
    shares = []
    for _ in range(400):
        shares.append(bench.traffic["new"])
        if (await run(bench, 1, error_rate={"new": 0.01, "old": 0.01})).state is not RolloutState.RUNNING:
            break
    ended = await bench.do(GetRollout(endpoint="chat"))
    assert (ended.state, ended.step) == (RolloutState.DONE, 3)
    assert sorted(set(shares)) == [5, 25, 50, 100]
    assert shares == sorted(shares)
    assert all(shares.count(share) >= 60 / 6 for share in (5, 25, 50, 100))  # each at least 60 s
    assert bench.traffic == {"new": 100}


async def test_an_entity_whose_failures_others_cover_is_moved_back_too(bench: RolloutBench) -> None:
    """With a fallback no client sees a failure, and the rows are those of the entity that answered."""
    await bench.do(START)
    bench.now += 2
    await bench.add(*(usage_row(bench.now, failed_over="new") for _ in range(10)))
    await bench.add(*(usage_row(bench.now, entity="new") for _ in range(30)))
    await bench.rollouts.look()
    ended = await bench.do(GetRollout(endpoint="chat"))
    assert ended.state is RolloutState.ROLLED_BACK
    assert "failed in 10 of 40" in ended.message


@pytest.mark.parametrize(
    ("guards", "row", "says"),
    [
        (Guards(max_first_token_s=0.5), {"first_token_s": 0.6}, "first token after 0.5 s in 40 of 40"),
        (Guards(max_total_s=2.0), {"total_s": 2.5}, "longer than 2 s in 40 of 40"),
    ],
)
async def test_a_slow_entity_is_moved_back(
    bench: RolloutBench, guards: Guards, row: Mapping[str, Any], says: str
) -> None:
    await bench.do(replace(START, guards=guards))
    bench.now += 2
    await bench.add(*(usage_row(bench.now, entity="new", **row) for _ in range(40)))
    await bench.rollouts.look()
    ended = await bench.do(GetRollout(endpoint="chat"))
    assert ended.state is RolloutState.ROLLED_BACK
    assert says in ended.message


@pytest.mark.parametrize(
    "row",
    [
        {"outcome": "failed", "status": 400},  # the client's fault
        {"outcome": "aborted", "status": 200},  # the client left
        {"outcome": "lost", "status": 0},  # its gateway died
        {"outcome": "failed", "status": 500, "is_shadow": True},
        {"outcome": "failed", "status": 500, "endpoint": "other"},
        {"outcome": "failed", "status": 500, "started": 5.0},  # long before
    ],
)
async def test_what_is_not_the_entitys_fault_moves_nothing(bench: RolloutBench, row: dict[str, Any]) -> None:
    await bench.do(START)
    bench.now += 61
    await bench.add(*(usage_row(**{"started": bench.now, "entity": "new", **row}) for _ in range(100)))
    await bench.rollouts.look()
    shown = await bench.do(GetRollout(endpoint="chat"))
    assert (shown.state, shown.step) == (RolloutState.RUNNING, 0)
    assert "waits for requests: 0 of 20" in shown.message


@pytest.mark.parametrize("status", [500, 503, 424, 429, 200])  # the last: a stream that broke
async def test_every_protocols_failures_count(bench: RolloutBench, status: int) -> None:
    await bench.do(START)
    rows = (usage_row(bench.now, entity="new", outcome="failed", status=status) for _ in range(10))
    await bench.add(*rows)
    await bench.rollouts.look()
    assert (await bench.do(GetRollout(endpoint="chat"))).state is RolloutState.ROLLED_BACK


async def test_a_rollout_goes_on_where_it_was_after_a_restart(bench: RolloutBench) -> None:
    await bench.do(START)
    await run(bench, 15, error_rate={})
    before = await bench.do(GetRollout(endpoint="chat"))
    assert before.step >= 1
    bench.restart()
    assert await bench.do(GetRollout(endpoint="chat")) == before
    ended = await run(bench, error_rate={"new": 0.3})
    assert ended.state is RolloutState.ROLLED_BACK
    assert bench.traffic == {"old": 100}


async def test_a_user_stops_and_promotes(bench: RolloutBench) -> None:
    await bench.do(START)
    assert (await bench.do(StopRollout(endpoint="chat"))).state is RolloutState.STOPPED
    assert bench.traffic == {"old": 100}
    await bench.do(START)
    assert (await bench.do(StopRollout(endpoint="chat", promote=True))).state is RolloutState.DONE
    assert bench.traffic == {"new": 100}
    with pytest.raises(Conflict, match="has ended: DONE"):
        await bench.do(StopRollout(endpoint="chat"))
    assert bench.splits.changes == 4


async def test_there_is_one_rollout_at_a_time(bench: RolloutBench) -> None:
    with pytest.raises(ModelNotFound, match="has had no rollout"):
        await bench.do(GetRollout(endpoint="chat"))
    await bench.do(START)
    with pytest.raises(Conflict, match="runs already"):
        await bench.do(START)


@pytest.mark.parametrize("looks", [0, 1])  # a question tells the truth also before the next look
@pytest.mark.parametrize(
    ("traffic", "state", "says"),
    [
        ({"old": 50, "new": 50}, RolloutState.STOPPED, "somebody else changed the traffic"),
        ({"old": 100}, RolloutState.STOPPED, "somebody else changed the traffic"),
        ({"new": 100}, RolloutState.DONE, "gave the entity all traffic"),
    ],
)
async def test_a_rollout_gives_way_to_whoever_changes_the_endpoint(
    bench: RolloutBench, traffic: dict[str, int], state: RolloutState, says: str, looks: int
) -> None:
    await bench.do(START)
    bench.splits.splits["chat"] = replace(bench.splits.splits["chat"], traffic=traffic)
    for _ in range(looks):
        await bench.rollouts.look()
    shown = await bench.do(GetRollout(endpoint="chat"))
    assert shown.state is state
    assert says in shown.message
    with pytest.raises(Conflict, match=f"has ended: {state}"):
        await bench.do(StopRollout(endpoint="chat"))
    assert bench.traffic == traffic


async def test_after_a_change_by_others_the_next_rollout_may_start_at_once(bench: RolloutBench) -> None:
    await bench.do(START)
    bench.splits.splits["chat"] = replace(bench.splits.splits["chat"], traffic={"new": 100})
    assert (await bench.do(replace(START, entity="old"))).state is RolloutState.RUNNING
    assert bench.traffic == {"old": 5, "new": 95}


@pytest.mark.parametrize(
    ("change", "says"),
    [({"entities": ("old",)}, "served no more"), ({"endpoint_id": "e-2"}, "made anew")],
)
async def test_a_rollout_ends_with_its_entity_or_endpoint(
    bench: RolloutBench, change: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.do(START)
    bench.splits.splits["chat"] = replace(bench.splits.splits["chat"], **change)
    await bench.rollouts.look()
    assert says in caplog.text


async def test_a_step_waits_while_the_endpoint_is_updated(bench: RolloutBench) -> None:
    await bench.do(START)
    bench.splits.refuse = busy()
    shown = await run(bench, 20, error_rate={})
    assert (shown.state, shown.step, bench.traffic["new"]) == (RolloutState.RUNNING, 0, 5)
    bench.splits.refuse = None
    assert (await run(bench, 1, error_rate={})).step == 1


async def test_a_refused_start_leaves_nothing(bench: RolloutBench) -> None:
    bench.splits.refuse = busy()
    with pytest.raises(Conflict):
        await bench.do(START)
    with pytest.raises(ModelNotFound):
        await bench.do(GetRollout(endpoint="chat"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"entity": "other"}, "entity"),
        ({"steps": ()}, "steps"),
        ({"steps": (50, 25, 100)}, "steps"),
        ({"steps": (0, 100)}, "steps"),
        ({"steps": (5, 50)}, "steps"),
        ({"steps": (5, 101)}, "steps"),
        ({"interval_s": 0.5}, "interval_s"),
        ({"interval_s": float("nan")}, "interval_s"),
        ({"guards": Guards(max_error_rate=1.5)}, "guards.max_error_rate"),
        ({"guards": Guards(max_first_token_s=-1.0)}, "guards.max_first_token_s"),
        ({"guards": Guards(min_requests=0)}, "guards.min_requests"),
    ],
)
async def test_a_wrong_rollout_is_refused_by_field(
    bench: RolloutBench, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        await bench.do(replace(START, **change))
    assert refused.value.param == field


async def test_embeddings_have_no_first_token(bench: RolloutBench) -> None:
    bench.splits.splits["chat"] = replace(bench.splits.splits["chat"], task="llm/v1/embeddings")
    with pytest.raises(InvalidField, match="no first token"):
        await bench.do(replace(START, guards=Guards(max_first_token_s=1.0)))


async def test_an_entity_with_all_traffic_has_nowhere_to_go(bench: RolloutBench) -> None:
    with pytest.raises(Conflict, match="all traffic already"):
        await bench.do(replace(START, entity="old"))


async def test_a_shadow_is_set_and_taken_away(bench: RolloutBench) -> None:
    await bench.do(PutShadow(endpoint="chat", shadow={"entity": "new", "percentage": 10}))
    assert bench.splits.shadows == {"chat": Shadow(entity="new", percentage=10)}
    await bench.do(PutShadow(endpoint="chat", shadow=None))
    assert bench.splits.shadows == {"chat": None}
    with pytest.raises(InvalidField):
        await bench.do(PutShadow(endpoint="chat", shadow={"entity": "new", "percentage": 101}))


async def test_one_rollout_that_cannot_be_judged_does_not_keep_others(
    bench: RolloutBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.splits.splits["other"] = replace(bench.splits.splits["chat"], endpoint_id="e-9")
    await bench.do(replace(START, endpoint="other"))
    await bench.do(START)
    await bench.add(*(usage_row(bench.now, entity="new", outcome="failed", status=500) for _ in range(10)))
    whole = Rollouts._advance

    def advance(self: Rollouts, session: Any, id: int) -> bool:
        if id == 1:
            raise RuntimeError("broken")
        return whole(self, session, id)

    monkeypatch.setattr(Rollouts, "_advance", advance)
    await bench.rollouts.look()
    assert (await bench.do(GetRollout(endpoint="chat"))).state is RolloutState.ROLLED_BACK
    assert "could not be judged" in caplog.text
