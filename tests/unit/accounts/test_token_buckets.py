"""Token buckets: never more than the budget, debts, waits that are true, bounded memory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.accounts.token_buckets import SWEEP_AT, Buckets, add, returned
from serve_app.types import Budget, Draw


class Clock:
    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def draw(
    amount: float, bucket: str = "b", *, unit: str = "tokens", capacity: float = 10, per_second: float = 1
) -> Draw:
    return Draw(bucket=bucket, unit=unit, amount=amount, capacity=capacity, per_second=per_second)


def level(buckets: Buckets, like: Draw) -> int:
    """What is left, rounded down: an empty claim looks and takes nothing."""
    return buckets.claim([replace(like, amount=0)]).budgets[0].remaining


def test_a_new_bucket_is_full_and_a_claim_takes_from_it() -> None:
    verdict = Buckets(Clock()).claim([draw(3)])
    assert verdict.granted
    assert verdict.budgets == (Budget(unit="tokens", limit=10, remaining=7, reset_s=3.0),)
    assert (verdict.retry_after_s, verdict.refused) == (None, None)


def test_a_bucket_fills_with_time_and_never_overflows() -> None:
    clock = Clock()
    buckets = Buckets(clock)
    buckets.claim([draw(10)])
    clock.now += 4.5
    assert level(buckets, draw(0)) == 4
    clock.now += 1_000
    assert level(buckets, draw(0)) == 10


def test_a_refusal_takes_nothing_and_names_the_unit_that_must_wait_longest() -> None:
    buckets = Buckets(Clock())
    requests = draw(1, "r", unit="requests")
    inputs = draw(8, "i", unit="input-tokens")
    outputs = draw(8, "o", unit="output-tokens", per_second=0.5)
    assert buckets.claim([requests, inputs, outputs]).granted
    verdict = buckets.claim([requests, inputs, outputs])
    assert not verdict.granted
    assert verdict.refused == "output-tokens"
    assert verdict.retry_after_s == pytest.approx(12)  # 6 missing at 0.5 a second
    assert [b.unit for b in verdict.budgets] == ["requests", "input-tokens", "output-tokens"]
    assert [b.remaining for b in verdict.budgets] == [9, 2, 2]


def test_more_than_the_capacity_is_never_granted_and_says_so() -> None:
    verdict = Buckets(Clock()).claim([draw(1, "r", unit="requests"), draw(11)])
    assert (verdict.granted, verdict.retry_after_s, verdict.refused) == (False, None, "tokens")


def test_several_draws_from_one_bucket_add_up() -> None:
    buckets = Buckets(Clock())
    assert not buckets.claim([draw(6), draw(6)]).granted
    assert buckets.claim([draw(5), draw(5)]).granted
    assert level(buckets, draw(0)) == 0


def test_no_draws_are_always_granted() -> None:
    verdict = Buckets(Clock()).claim([])
    assert (verdict.granted, verdict.budgets) == (True, ())


def test_taking_more_than_reserved_goes_into_debt_which_time_pays() -> None:
    clock = Clock()
    buckets = Buckets(clock)
    buckets.claim([draw(10)])
    buckets.settle([draw(5)])
    verdict = buckets.claim([draw(1)])
    assert verdict.budgets == (Budget(unit="tokens", limit=10, remaining=0, reset_s=15.0),)
    assert verdict.retry_after_s == pytest.approx(6)
    clock.now += 6
    assert buckets.claim([draw(1)]).granted


def test_giving_back_stops_at_the_capacity() -> None:
    buckets = Buckets(Clock())
    buckets.claim([draw(3)])
    buckets.settle([draw(-100)])
    assert level(buckets, draw(0)) == 10
    assert not buckets.claim([draw(10.5)]).granted


@pytest.mark.parametrize(("capacity", "left"), [(100, 50), (4, 2), (0, 0)])
def test_new_numbers_keep_the_share_that_is_left(capacity: float, left: int) -> None:
    buckets = Buckets(Clock())
    buckets.claim([draw(5)])
    assert level(buckets, draw(0, capacity=capacity)) == left


def test_a_new_rate_counts_from_now_on() -> None:
    clock = Clock()
    buckets = Buckets(clock)
    buckets.claim([draw(10)])
    clock.now += 2
    assert level(buckets, draw(0, per_second=3)) == 2
    clock.now += 2
    assert level(buckets, draw(0, per_second=3)) == 8


def test_a_clock_that_goes_back_fills_nothing_and_harms_nothing() -> None:
    clock = Clock()
    buckets = Buckets(clock)
    buckets.claim([draw(10)])
    clock.now -= 500
    assert level(buckets, draw(0)) == 0
    clock.now += 3
    assert level(buckets, draw(0)) == 3


def test_full_buckets_are_forgotten_and_others_are_kept() -> None:
    clock = Clock()
    buckets = Buckets(clock)
    slow = draw(10, "slow", per_second=1e-6)
    buckets.claim([slow])
    for number in range(20 * SWEEP_AT):
        buckets.claim([draw(1, f"b{number}")])
        clock.now += 0.1  # ten are not full at any time
        assert len(buckets) <= SWEEP_AT
    assert level(buckets, slow) == 0


def test_many_buckets_in_use_are_all_kept() -> None:
    buckets = Buckets(Clock())
    names = [f"b{number}" for number in range(3 * SWEEP_AT)]
    for name in names:
        buckets.claim([draw(4, name)])
    assert {level(buckets, draw(0, name)) for name in names} == {6}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", -1.0),
        ("amount", math.nan),
        ("amount", math.inf),
        ("capacity", -1.0),
        ("capacity", math.nan),
        ("per_second", 0.0),
        ("per_second", math.inf),
    ],
)
def test_numbers_no_bucket_can_have_are_refused_by_name_and_change_nothing(field: str, value: float) -> None:
    buckets = Buckets(Clock())
    bad = replace(draw(1, "bad"), **{field: value})
    with pytest.raises(ValueError, match=field):
        buckets.claim([draw(5), bad])
    if field != "amount" or value != -1.0:
        with pytest.raises(ValueError, match=field):
            buckets.settle([draw(5), bad])
    assert level(buckets, draw(0)) == 10


def test_settlements_of_one_bucket_add_up_with_the_newest_numbers() -> None:
    sums: dict[str, Draw] = {}
    add(sums, [draw(5), draw(1, "other"), draw(-7, capacity=20)])
    assert sums == {"b": draw(-2, capacity=20), "other": draw(1, "other")}
    add(sums, returned(sums.values()))
    assert [d.amount for d in sums.values()] == [0, 0]


# What happens to one bucket: time passes, a claim comes, something is settled.
_events = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.floats(0, 100)),
        st.tuples(st.just("claim"), st.floats(0, 12)),
        st.tuples(st.just("more"), st.floats(0, 12)),
        st.tuples(st.just("back"), st.floats(0, 1)),  # this share of an earlier grant
    ),
    max_size=60,
)


@given(events=_events, per_second=st.floats(1e-3, 100), start=st.floats(0, 1e7))
def test_over_any_stretch_of_time_no_more_is_taken_than_the_budget(
    events: list[tuple[str, float]], per_second: float, start: float
) -> None:
    """Checked for every pair of moments; what is given back may be taken again."""
    clock = Clock(start)
    buckets = Buckets(clock)
    grants: list[float] = []
    ledger: list[tuple[float, float]] = []  # when, net amount taken so far
    taken = 0.0
    for kind, value in events:
        if kind == "time":
            clock.now += value
            continue
        before = taken
        if kind == "claim" and buckets.claim([draw(value, per_second=per_second)]).granted:
            grants.append(value)
            taken += value
        elif kind == "more":
            buckets.settle([draw(value, per_second=per_second)])
            taken += value
        elif kind == "back" and grants:
            given = value * grants.pop()
            buckets.settle([draw(-given, per_second=per_second)])
            taken -= given
        if kind == "claim" and taken > before:
            for then, so_far in ledger or [(start, 0.0)]:
                budget = 10 + (clock.now - then) * per_second
                assert taken - so_far <= budget * (1 + 1e-9)  # float64: summed in another order here
        ledger.append((clock.now, taken))


@given(
    events=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 10)), min_size=1, max_size=30),
    per_second=st.floats(1e-3, 100),
    start=st.floats(0, 1e7),
)
def test_a_claim_is_granted_after_the_wait_it_was_told_and_not_much_before(
    events: list[tuple[float, float]], per_second: float, start: float
) -> None:
    clock = Clock(start)
    buckets = Buckets(clock)
    for passed, amount in events:
        clock.now += passed
        one = draw(amount, per_second=per_second)
        verdict = buckets.claim([one])
        if not verdict.granted:
            assert verdict.retry_after_s is not None
            earlier = clock.now + 0.99 * verdict.retry_after_s
            later = clock.now + verdict.retry_after_s
            if verdict.retry_after_s > 1e-3:  # what the clock cannot resolve is added
                clock.now = earlier
                assert not buckets.claim([one]).granted
            clock.now = later
            assert buckets.claim([one]).granted
