"""What becomes of a step, and how the traffic is divided."""

import random

import pytest

from serve_app.control.rollouts.decision import Move, StepSeen, decide
from serve_app.control.rollouts.proportions import Share
from serve_app.control.rollouts.splits import with_share
from serve_app.types.control import Guards

STEPS = 4
GUARDS = Guards(max_error_rate=0.05, max_first_token_s=0.5, max_total_s=5.0, min_requests=20)


def seen(
    hits: int = 0, count: int = 100, *, first: int = 0, total: int = 0, seconds: float = 60.0
) -> StepSeen:
    return StepSeen(
        seconds=seconds,
        failed=Share(hits, count),
        slow_first=Share(first, count),
        slow_total=Share(total, count),
    )


@pytest.mark.parametrize(
    ("step", "move", "says"),
    [
        (seen(), Move.GO_ON, "failed in 0 of 100 (at most 0.05)"),
        (seen(5), Move.GO_ON, "failed in 5 of 100"),
        (seen(6), Move.STAY, "waits until it is certain: failed in 6 of 100"),
        (seen(30), Move.GO_BACK, "a guard is broken: failed in 30 of 100"),
        (seen(0, seconds=59.9), Move.STAY, "the step lasts 60 s"),
        (seen(30, seconds=0.1), Move.GO_BACK, "failed in 30 of 100"),
        (seen(0, 19), Move.STAY, "waits for requests: 19 of 20"),
        (seen(0, 0), Move.STAY, "waits for requests: 0 of 20"),
        (seen(8, 8), Move.GO_BACK, "failed in 8 of 8"),
        (seen(first=6), Move.STAY, "first token after 0.5 s in 6 of 100"),
        (seen(first=40), Move.GO_BACK, "first token after 0.5 s in 40 of 100"),
        (seen(total=40), Move.GO_BACK, "longer than 5 s in 40 of 100"),
    ],
)
def test_a_step(step: StepSeen, move: Move, says: str) -> None:
    found = decide(GUARDS, STEPS, 60.0, step)
    assert (found.move, says in found.reason) == (move, True), found


def test_a_guard_that_is_not_set_is_not_looked_at() -> None:
    only_errors = Guards(max_error_rate=0.05)
    assert decide(only_errors, STEPS, 60.0, seen(first=100, total=100)).move is Move.GO_ON
    nothing = Guards(max_error_rate=None)
    assert decide(nothing, STEPS, 60.0, seen(100)) == (Move.GO_ON, "within all guards: no guard is set")
    assert decide(nothing, STEPS, 60.0, seen(0, 3)).move is Move.STAY


def test_a_bound_of_zero_allows_no_failure() -> None:
    guards = Guards(max_error_rate=0.0)
    assert decide(guards, STEPS, 60.0, seen(1)).move is Move.GO_BACK
    assert decide(guards, STEPS, 60.0, seen(0)).move is Move.GO_ON


def end_of(error_rate: float, rng: random.Random) -> Move:
    """How a rollout ends whose entity fails that often; looked at after every second request."""
    for _ in range(STEPS):
        failed = count = 0
        while True:
            for _ in range(2):
                count += 1
                failed += rng.random() < error_rate
            found = decide(Guards(), STEPS, 10.0, seen(failed, count, seconds=float(count)))
            if found.move is Move.GO_BACK or count > 5000:
                return found.move
            if found.move is Move.GO_ON:
                break
    return Move.GO_ON


@pytest.mark.parametrize(
    ("error_rate", "wrong", "most"),
    [(0.2, Move.GO_ON, 1), (0.01, Move.GO_BACK, 1), (0.05, Move.GO_BACK, 10)],  # 0.05: 5 expected at the most
)
def test_a_bad_entity_goes_back_and_a_good_one_arrives(error_rate: float, wrong: Move, most: int) -> None:
    rng = random.Random(11)
    ends = [end_of(error_rate, rng) for _ in range(100)]
    assert ends.count(wrong) <= most


@pytest.mark.parametrize(
    ("former", "percentage", "now"),
    [
        ({"old": 100}, 5, {"old": 95, "new": 5}),
        ({"old": 100, "new": 0}, 100, {"new": 100}),
        ({"old": 60, "other": 30, "new": 10}, 33, {"old": 45, "other": 22, "new": 33}),
        ({"a": 33, "b": 33, "c": 34}, 50, {"a": 17, "b": 16, "c": 17, "new": 50}),
    ],
)
def test_the_others_keep_their_proportions(
    former: dict[str, int], percentage: int, now: dict[str, int]
) -> None:
    assert with_share(former, "new", percentage) == now


def test_any_split_adds_up() -> None:
    rng = random.Random(2)
    for _ in range(300):
        cuts = sorted(rng.randint(0, 100) for _ in range(rng.randint(0, 5)))
        parts = [high - low for low, high in zip([0, *cuts], [*cuts, 100], strict=True)]
        former = {f"entity-{place}": part for place, part in enumerate(parts)}
        percentage = rng.randint(1, 100)
        assert sum(with_share(former, "new", percentage).values()) == 100


def test_the_rest_needs_somebody() -> None:
    with pytest.raises(ValueError, match="no other entity"):
        with_share({"new": 100}, "new", 50)
