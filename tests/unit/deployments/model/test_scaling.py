"""The policy as a function of what Serve shows it: Serve's own context and configuration, and no cluster."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.serve._private.common import DeploymentID
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from serve_app.deployments.model.deployment import BY_LOAD
from serve_app.deployments.model.scaling import CACHE_USE, MAX_SEQUENCES, PROMPT_WAIT, SEQUENCES, ByLoad

BATCH = 64.0


def replica(sequences: float = 0.0, *, cache: float = 0.0, wait_s: float = 0.0) -> dict[str, float]:
    return {SEQUENCES: sequences, MAX_SEQUENCES: BATCH, CACHE_USE: cache, PROMPT_WAIT: wait_s}


def context(
    *replicas: Mapping[str, float], target: int = 1, queued: float = 0.0, running: int | None = None
) -> AutoscalingContext:
    """What Serve would show of these replicas; `running`: there are this many, and not all have reported."""
    names = {name for report in replicas for name in report}
    return AutoscalingContext(
        deployment_id=DeploymentID(name="Model", app_name="model"),
        deployment_name="Model",
        app_name="model",
        current_num_replicas=len(replicas) if running is None else running,
        target_num_replicas=target,
        running_replicas=[],
        total_num_requests=queued,
        total_queued_requests=queued,
        aggregated_metrics={
            name: {i: r[name] for i, r in enumerate(replicas) if name in r} for name in names
        },
        raw_metrics={},
        capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=100,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(min_replicas=0, max_replicas=100),
    )


def wanted(*replicas: Mapping[str, float], target: int = 1, queued: float = 0.0, **arguments: float) -> int:
    return ByLoad(**arguments)(context(*replicas, target=target, queued=queued))[0]


def test_nothing_changes_while_the_batch_is_between_the_bounds() -> None:
    for sequences in (33.0, 40.0, 48.0):
        assert wanted(replica(sequences), target=1) == 1
    for sequences in (33.0, 40.0, 48.0):
        assert wanted(replica(sequences), replica(sequences), target=2) == 2


def test_more_sequences_than_batches_hold_well_want_more_replicas() -> None:
    assert wanted(replica(49.0)) == 2
    assert wanted(replica(64.0), replica(64.0), target=2) == 3
    assert wanted(replica(64.0 + 256.0)) == 7  # a full batch and a full queue: 320 / (64 * 0.75)


def test_a_request_of_many_choices_counts_as_its_sequences() -> None:
    # Ten requests with n = 16: to Serve's own policy they are ten.
    assert wanted(replica(160.0)) == 4


def test_fewer_replicas_are_wanted_when_the_rest_would_be_well_below_full() -> None:
    assert wanted(replica(17.0), replica(17.0), target=2) == 2  # together more than half of one
    assert wanted(replica(16.0), replica(16.0), target=2) == 1
    assert wanted(*[replica(4.0)] * 8, target=8) == 1


def test_a_load_that_wavers_around_a_bound_changes_the_number_once() -> None:
    target, seen = 1, []
    for step in range(40):
        sequences = 48.0 + (4.0 if step % 2 else -4.0)
        target = wanted(*[replica(sequences / target)] * target, target=target)
        seen.append(target)
    assert sum(a != b for a, b in itertools.pairwise(seen)) == 1
    assert seen[-1] == 2


def test_idle_replicas_may_all_go() -> None:
    assert wanted(replica(), replica(), target=2) == 0


def test_one_sequence_keeps_one_replica() -> None:
    assert wanted(replica(1.0)) == 1
    assert wanted(replica(0.1)) == 1  # a mean: there was one for a tenth of the time


def test_requests_that_queue_at_gateways_count_as_a_sequence_each() -> None:
    assert wanted(replica(48.0), queued=48.0) == 2
    assert wanted(replica(), queued=0.5) == 1


def test_prompts_that_wait_too_long_want_more_replicas_though_the_batch_is_not_full() -> None:
    assert wanted(replica(8.0, wait_s=1.0)) == 1
    assert wanted(replica(8.0, wait_s=6.0), target_wait_s=2.0) == 4
    assert wanted(replica(8.0, wait_s=6.0), target_wait_s=8.0) == 1


def test_a_full_cache_wants_more_replicas_though_the_batch_is_not_full() -> None:
    assert wanted(replica(10.0, cache=0.7)) == 1
    assert wanted(replica(10.0, cache=1.0)) == 2
    assert wanted(replica(10.0, cache=1.0), replica(10.0, cache=0.8), target=2) == 3


def test_the_fullest_of_the_three_is_the_load_of_a_replica_and_replicas_add_up() -> None:
    full_in_its_own_way = [replica(64.0), replica(2.0, cache=1.0), replica(2.0, wait_s=2.0)]
    assert wanted(*full_in_its_own_way, target=3, high=1.0, low=0.9) == 3
    assert wanted(replica(64.0, cache=1.0, wait_s=2.0), high=1.0, low=0.9) == 1


def test_one_long_prompt_wants_no_more_than_the_replica_it_runs_on() -> None:
    assert wanted(replica(1.0, wait_s=300.0)) == 1
    assert wanted(replica(3.0, wait_s=300.0)) == 3


def test_nothing_changes_before_the_first_report() -> None:
    assert ByLoad()(context(target=3, running=3))[0] == 3
    assert ByLoad()(context(target=0, running=0))[0] == 0


def test_a_replica_that_has_not_reported_in_full_is_left_out() -> None:
    partial = {SEQUENCES: 1e6}
    assert ByLoad()(context(replica(10.0), partial, target=1))[0] == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"high": 0.0}, "high: must be above 0 and at most 1"),
        ({"high": 1.1}, "high: must be above 0 and at most 1"),
        ({"high": math.nan}, "high: must be above 0 and at most 1"),
        ({"low": 0.0}, "low: must be above 0 and below high"),
        ({"low": 0.75}, "low: must be above 0 and below high"),
        ({"target_wait_s": 0.0}, "target_wait_s: must be a number of seconds above 0"),
        ({"target_wait_s": math.inf}, "target_wait_s: must be a number of seconds above 0"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ByLoad(**arguments)


loads = st.floats(0, 1000, allow_nan=False)
reports = st.lists(
    st.builds(
        lambda s, c, w: replica(s, cache=c, wait_s=w),
        st.floats(0, 400),
        st.floats(0, 1),
        st.floats(0, 600),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)  # other processes share the machine
@given(reports, st.integers(0, 8), loads)
def test_a_decision_taken_is_not_taken_back_while_the_load_stays(
    replicas: list[dict[str, float]], target: int, queued: float
) -> None:
    first = wanted(*replicas, target=target, queued=queued)
    assert wanted(*replicas, target=first, queued=queued) == first


@settings(deadline=None)  # other processes share the machine
@given(reports, st.integers(0, 8), loads, st.floats(0, 100))
def test_more_load_never_wants_fewer_replicas(
    replicas: list[dict[str, float]], target: int, queued: float, more: float
) -> None:
    assert wanted(*replicas, target=target, queued=queued + more) >= wanted(
        *replicas, target=target, queued=queued
    )


# --- as Serve runs it -------------------------------------------------------------------


def as_served(**fields: Any) -> Any:
    """The policy as Serve's controller has it: found by its path, sent by value, with delays applied."""
    policy = AutoscalingPolicy(policy_function=BY_LOAD, **fields)
    return _apply_autoscaling_config(policy.get_policy()(**policy.policy_kwargs))


def test_a_deploy_file_can_set_the_arguments() -> None:
    policy = AutoscalingPolicy(policy_function=BY_LOAD, policy_kwargs={"high": 1.0, "target_wait_s": 8.0})
    made = policy.get_policy()(**policy.policy_kwargs)
    assert made(context(replica(64.0, wait_s=8.0)))[0] == 1
    assert ByLoad()(context(replica(64.0, wait_s=8.0)))[0] > 1


def test_a_request_at_zero_replicas_starts_one_at_once() -> None:
    assert as_served()(context(target=0, running=0, queued=1.0))[0] == 1
    assert as_served()(context(target=0, running=0, queued=500.0))[0] == 1  # the rest follows from its load


def test_without_requests_zero_stays_zero() -> None:
    assert as_served()(context(target=0, running=0))[0] == 0


def test_a_model_that_starts_is_not_stopped_because_its_request_left() -> None:
    assert as_served()(context(target=1, running=0))[0] == 1


def test_idle_replicas_go_one_by_one_to_zero_and_only_after_their_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("ray.serve.autoscaling_policy.time.time", lambda: now)
    policy, target = as_served(), 3
    state: dict[str, Any] = {}
    seen: list[Any] = []
    for _ in range(100):
        ctx = context(*[replica()] * target, target=target)
        ctx.policy_state = state
        ctx.config = AutoscalingConfig(
            min_replicas=0, max_replicas=4, downscale_delay_s=20, downscale_to_zero_delay_s=50
        )
        decided, state = policy(ctx)
        if decided != target:
            seen.append((now - 1000.0, decided))
            target = decided
        if target == 0:
            break
        now += 1.0
    assert seen == [(20.0, 1), (71.0, 0)]
