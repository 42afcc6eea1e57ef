"""The split: shares, stickiness, what moves when weights change, who is tried next."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.endpoints.split import candidates

DRAWS = 20_000


def endpoint(*weights: int, **fields: object) -> Endpoint:
    entities = tuple(ServedEntity(model="m", version=str(i + 1)) for i in range(len(weights)))
    traffic = {entity.name: weight for entity, weight in zip(entities, weights, strict=True)}
    return Endpoint.model_validate({"name": "e", "served_entities": entities, "traffic": traffic, **fields})


def chosen(of: Endpoint, key: str) -> str:
    return candidates(of, key)[0].name


@pytest.mark.parametrize("weights", [(90, 10), (50, 50), (99, 1), (60, 30, 10), (10,) * 10, (100, 0)])
def test_shares_are_within_binomial_bounds(weights: tuple[int, ...]) -> None:
    split = endpoint(*weights)
    counts = Counter(chosen(split, f"key-{i}") for i in range(DRAWS))
    for entity in split.served_entities:
        share = split.traffic[entity.name] / 100
        spread = math.sqrt(DRAWS * share * (1 - share))
        assert abs(counts[entity.name] - DRAWS * share) <= 4.5 * spread


@given(key=st.text(), weights=st.sampled_from([(90, 10), (50, 50), (34, 33, 33)]))
def test_a_key_stays_with_its_entity(key: str, weights: tuple[int, ...]) -> None:
    assert len({chosen(endpoint(*weights), key) for _ in range(3)}) == 1


def test_moving_ten_percent_moves_only_those() -> None:
    before, after = endpoint(90, 10), endpoint(80, 20)
    keys = [f"key-{i}" for i in range(DRAWS)]
    moved = [key for key in keys if chosen(before, key) != chosen(after, key)]
    assert all(chosen(after, key) == "m-2" for key in moved)  # nobody leaves the one that grows
    assert abs(len(moved) - DRAWS / 10) <= 4.5 * math.sqrt(DRAWS * 0.1 * 0.9)


def test_an_entity_that_comes_takes_only_its_share_from_all() -> None:
    before, after = endpoint(50, 50), endpoint(40, 40, 20)
    keys = [f"key-{i}" for i in range(DRAWS)]
    moved = [key for key in keys if chosen(before, key) != chosen(after, key)]
    assert {chosen(after, key) for key in moved} == {"m-3"}
    assert abs(len(moved) - DRAWS / 5) <= 4.5 * math.sqrt(DRAWS * 0.2 * 0.8)


def test_another_salt_and_another_endpoint_draw_anew() -> None:
    keys = [f"key-{i}" for i in range(2_000)]
    base = [chosen(endpoint(50, 50), key) for key in keys]
    for other in (endpoint(50, 50, salt="2"), endpoint(50, 50, name="f")):
        same = sum(a == chosen(other, key) for a, key in zip(base, keys, strict=True))
        assert abs(same - 1_000) <= 4.5 * math.sqrt(500)


def test_the_parts_of_a_key_do_not_run_together() -> None:
    keys = [("a", "bc"), ("ab", "c")]
    picks = {tuple(chosen(endpoint(50, 50, salt=salt), f"{key}{i}") for i in range(64)) for salt, key in keys}
    assert len(picks) == 2


def test_what_is_not_ready_is_skipped_and_the_rest_shares_its_part() -> None:
    split = endpoint(50, 30, 20)
    counts = Counter(candidates(split, f"key-{i}", lambda e: e.name != "m-1")[0].name for i in range(DRAWS))
    assert counts["m-1"] == 0
    assert abs(counts["m-2"] - DRAWS * 0.6) <= 4.5 * math.sqrt(DRAWS * 0.24)


def test_when_nothing_is_ready_somebody_has_to_say_so() -> None:
    split = endpoint(90, 10)
    assert chosen(split, "k") == candidates(split, "k", lambda e: False)[0].name


def test_the_others_follow_in_order_the_ready_ones_first() -> None:
    split = endpoint(100, 0, 0, 0)
    order = [entity.name for entity in candidates(split, "k", lambda e: e.name != "m-2")]
    assert order == ["m-1", "m-3", "m-4", "m-2"]
    assert [e.name for e in candidates(endpoint(100, 0, fallback=False), "k")] == ["m-1"]


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize(("enabled", "names"), [(True, ["m-1", "m-2"]), (False, ["m-1"])])
def test_the_gateways_switch_of_fallbacks_goes_first(fallback: bool, enabled: bool, names: list[str]) -> None:
    split = endpoint(100, 0, fallback=fallback, ai_gateway={"fallback_config": {"enabled": enabled}})
    assert [entity.name for entity in candidates(split, "k")] == names
    assert [entity.name for entity in split.reachable] == names
