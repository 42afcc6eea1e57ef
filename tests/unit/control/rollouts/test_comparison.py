"""The report over an endpoint's entities, and what clients think of answers, over real databases."""

from dataclasses import replace

import pytest

from serve_app.control.database.database import Database
from serve_app.control.rollouts.feedback import MAX_METRICS
from serve_app.errors import InvalidField, ModelNotFound, Overloaded
from serve_app.types.control import CompareEntities, EntityReport, GiveFeedback
from tests.support.rollouts import RolloutBench, usage_row

ID = "0123456789abcdef" * 2


def judged(request_id: str = ID, metric: str = "thumbs", value: float = 1.0, **fields: str) -> GiveFeedback:
    return replace(GiveFeedback(request_id=request_id, metric=metric, value=value, key_id="alice"), **fields)


@pytest.fixture
def bench(database: Database) -> RolloutBench:
    return RolloutBench(database)


async def reports(bench: RolloutBench, **fields: object) -> dict[tuple[str, bool], EntityReport]:
    report = await bench.do(CompareEntities(endpoint="chat", **fields))  # type: ignore[arg-type]
    return {(each.entity, each.shadow): each for each in report.entities}


async def test_a_report_counts_what_the_ledger_has(each_database: Database) -> None:
    bench = RolloutBench(each_database)
    rows = [usage_row(bench.now, entity="new", total_s=1.0 + k % 10, completion_tokens=k) for k in range(200)]
    rows += [usage_row(bench.now, entity="new", outcome="failed", status=500) for _ in range(4)]
    rows += [usage_row(bench.now, entity="new", outcome="failed", status=400) for _ in range(3)]
    rows += [usage_row(bench.now, entity="new", outcome="aborted") for _ in range(2)]
    rows += [usage_row(bench.now, failed_over="new,third"), usage_row(bench.now, failed_over="new")]
    rows += [usage_row(bench.now, entity="new", is_shadow=True) for _ in range(5)]
    rows += [usage_row(bench.now - 1, entity="new")]  # before the endpoint's configuration
    await bench.add(*rows)
    found = await reports(bench)
    new = found["new", False]
    assert new.requests == 209
    assert new.outcomes == {"finished": 200, "failed": 7, "aborted": 2, "failed_over": 2}
    assert (new.error_rate.count, new.error_rate.mean) == (206, 6 / 206)
    assert new.total_s.mean == pytest.approx(5.5)
    assert new.total_s.low is not None
    assert new.total_s.high is not None
    assert new.total_s.low < 5.5 < new.total_s.high
    assert new.completion_tokens.mean == pytest.approx(99.5)
    assert new.first_token_s.low is None  # all are equal
    assert found["new", True].requests == 5
    assert found["third", False].outcomes == {"failed_over": 1}
    assert found["old", False].requests == 2
    assert (await reports(bench, since=0.0))["new", False].requests == 210


async def test_entities_that_differ_are_told_and_others_are_not(bench: RolloutBench) -> None:
    await bench.add(*(usage_row(bench.now, total_s=1 + k % 7) for k in range(400)))
    await bench.add(*(usage_row(bench.now, entity="new", total_s=2.5 + k % 7) for k in range(400)))
    slower = await bench.do(CompareEntities(endpoint="chat", metric="total_s"))
    assert len(slower.tests) == 1
    test = slower.tests[0]
    assert (test.entity, test.against, test.is_significant) == ("new", "old", True)
    assert test.p_value < 0.05
    assert test.difference.low is not None
    assert test.difference.low > 0
    same = await bench.do(CompareEntities(endpoint="chat", metric="error_rate"))
    assert not same.tests[0].is_significant
    assert same.tests[0].p_value == 1.0


async def test_the_report_of_an_idle_endpoint_says_nothing(bench: RolloutBench) -> None:
    report = await bench.do(CompareEntities(endpoint="chat"))
    assert [each.requests for each in report.entities] == [0, 0]
    assert report.entities[0].error_rate.mean is None
    assert [test.p_value for test in report.tests] == [1.0]
    with pytest.raises(ModelNotFound):
        await bench.do(CompareEntities(endpoint="nothing"))


@pytest.mark.parametrize(
    ("fields", "field"), [({"metric": "latency"}, "metric"), ({"confidence": 1.0}, "confidence")]
)
async def test_a_wrong_question_is_refused_by_field(
    bench: RolloutBench, fields: dict[str, str], field: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        await reports(bench, **fields)
    assert refused.value.param == field


async def test_votes_of_clients_are_compared(each_database: Database) -> None:
    bench = RolloutBench(each_database)
    rows = [usage_row(bench.now, entity=name) for name in ("old", "new") for _ in range(40)]
    ids = [row.id for row in rows]
    await bench.add(*rows)
    for place, id in enumerate(ids):
        await bench.do(judged(f"chatcmpl-{id}", value=float(place >= 40 or place % 4 == 0)))
    await bench.do(judged(ids[0], metric="stars", value=4.5))
    report = await bench.do(CompareEntities(endpoint="chat", metric="thumbs"))
    means = {each.entity: each.feedback["thumbs"].mean for each in report.entities}
    assert means == {"old": 0.25, "new": 1.0}
    assert report.tests[0].is_significant
    assert report.entities[0].feedback["stars"].mean == 4.5


async def test_a_later_value_replaces_an_earlier_one(bench: RolloutBench) -> None:
    await bench.add(usage_row(bench.now, id=ID))
    await bench.do(judged(value=0.0))
    await bench.do(judged(f"req_{ID}", value=1.0))
    found = (await reports(bench))["old", False].feedback["thumbs"]
    assert (found.count, found.mean) == (1, 1.0)


async def test_feedback_may_come_before_its_request(bench: RolloutBench) -> None:
    await bench.do(judged())
    assert (await reports(bench))["old", False].feedback == {}
    await bench.add(usage_row(bench.now, id=ID))
    assert (await reports(bench))["old", False].feedback["thumbs"].count == 1


async def test_nobody_judges_the_answers_of_another_key(bench: RolloutBench) -> None:
    await bench.do(judged(key_id="mallory"))  # nobody knows the request yet
    await bench.add(usage_row(bench.now, id=ID))
    assert (await reports(bench))["old", False].feedback == {}
    with pytest.raises(ModelNotFound, match="no such request"):
        await bench.do(judged(key_id="mallory"))
    with pytest.raises(ModelNotFound, match="no such request"):
        await bench.do(judged(endpoint="other"))
    await bench.do(judged(endpoint="chat"))
    assert (await reports(bench))["old", False].feedback["thumbs"].count == 1


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (judged("nonsense"), "request_id"),
        (judged(f"{ID}\n"), "request_id"),
        (judged(metric=""), "metric"),
        (judged(metric="error_rate"), "metric"),
        (judged(metric="a b"), "metric"),
        (judged(value=float("inf")), "value"),
        (judged(value=1e10), "value"),
    ],
)
async def test_wrong_feedback_is_refused_by_field(
    bench: RolloutBench, command: GiveFeedback, field: str
) -> None:
    with pytest.raises(InvalidField) as refused:
        await bench.do(command)
    assert refused.value.param == field


async def test_feedback_is_bounded(bench: RolloutBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_METRICS):
        await bench.do(judged(metric=f"m{number}"))
    with pytest.raises(InvalidField, match="at most 20 metrics"):
        await bench.do(judged(metric="one-more"))
    await bench.do(judged(metric="m0", value=0.0))
    monkeypatch.setattr("serve_app.control.rollouts.feedback.MAX_UNKNOWN", MAX_METRICS)
    other = ID[::-1]
    with pytest.raises(Overloaded, match="not recorded yet"):
        await bench.do(judged(other))
    await bench.add(usage_row(bench.now, id=ID))  # what is known counts no more
    await bench.do(judged(other))
    bench.now += 4000
    assert (await reports(bench))["old", False].feedback["m1"].count == 1
