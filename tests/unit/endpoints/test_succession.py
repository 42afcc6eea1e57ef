"""One catalogue after another: who waits, who does not, and that somebody always answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from serve_app.deployments.gateway.control.takeover import succession
from serve_app.endpoints.endpoint import Endpoint, ServedEntity


def endpoint(name: str = "talk", fallback: bool = True, **traffic: int) -> Endpoint:
    entities: list[dict[str, Any]] = [{"model": model} for model in traffic]
    return Endpoint.model_validate(
        {"name": name, "served_entities": entities, "traffic": traffic, "fallback": fallback}
    )


def only(*models: str) -> Callable[[ServedEntity], bool]:
    return lambda entity: entity.model in models


def test_new_shares_of_what_answers_change_at_once() -> None:
    new = endpoint(a=10, b=90)
    assert succession([endpoint(a=90, b=10)], [new], only("a", "b")) == succession([], [new], only())
    assert succession([endpoint(a=90, b=10)], [new], only("a", "b")).endpoints == (new,)


def test_an_endpoint_waits_for_every_application_that_gets_traffic_anew() -> None:
    old, new = endpoint(a=100), endpoint(a=0, b=50, c=50)
    now = succession([old], [new], only("a", "b"))
    assert now.endpoints == (old,)
    assert now.waiting == {"talk": ("model-c",)}
    assert succession([old], [new], only("a", "b", "c")).endpoints == (new,)


def test_what_gets_no_traffic_is_not_waited_for() -> None:
    new = endpoint(a=100, b=0)
    assert succession([endpoint(a=100)], [new], only("a")).endpoints == (new,)


def test_what_had_traffic_before_is_not_waited_for() -> None:
    new = endpoint(a=50, b=50)
    assert succession([endpoint(a=90, b=10)], [new], only("a")).endpoints == (new,)


def test_an_endpoint_whose_former_models_are_gone_is_content_with_a_part_of_the_new_ones() -> None:
    old, new = endpoint(a=100), endpoint(b=50, c=50)
    assert succession([old], [new], only("c")).endpoints == (new,)
    assert succession([old], [new], only("a", "c")).endpoints == (old,)
    assert succession([old], [new], only()).waiting  # for whichever comes first
    assert succession([], [new], only()).endpoints == (new,)


def test_without_a_fallback_an_idle_entity_is_no_reason_to_stay() -> None:
    part = endpoint(c=50, d=50)
    assert succession([endpoint(a=100, b=0)], [part], only("b", "c")).waiting
    assert succession([endpoint(a=100, b=0, fallback=False)], [part], only("b", "c")).endpoints == (part,)


def test_endpoints_come_and_go_at_once() -> None:
    old, new = (
        [endpoint("one", a=100), endpoint("two", a=100)],
        [endpoint("two", a=100), endpoint("three", b=100)],
    )
    assert succession(old, new, only("a")).endpoints == tuple(new)


def test_another_model_in_the_same_application_is_waited_for() -> None:
    def of(model: str) -> Endpoint:
        return Endpoint.model_validate(
            {"name": "talk", "served_entities": [{"model": model, "app": "bought"}]}
        )

    assert succession([of("a")], [of("b")], only("a")).waiting == {"talk": ("bought",)}
    assert succession([of("a")], [of("b")], only("b")).endpoints == (of("b"),)


@pytest.mark.parametrize("seed", range(300))
def test_an_endpoint_that_can_be_answered_can_be_answered_afterwards(seed: int) -> None:
    rng = random.Random(seed)

    def some() -> Endpoint:
        models = rng.sample("abcd", rng.randint(1, 4))
        shares = [0] * len(models)
        shares[rng.randrange(len(models))] += 30
        shares[rng.randrange(len(models))] += 70
        return endpoint(fallback=rng.random() < 0.5, **dict(zip(models, shares, strict=True)))

    old, new, answers = some(), some(), only(*rng.sample("abcd", rng.randint(0, 4)))
    now = succession([old], [new], answers)
    (taken,) = now.endpoints
    assert taken == (old if now.waiting else new)
    known = {entity.model for entity in old.weighted}
    if any(map(answers, old.reachable)) and not any(map(answers, new.reachable)):
        # Unless all that is left of it was there before: then waiting would not help.
        assert taken == old or all(entity.model in known for entity in new.weighted)
    assert succession(now.endpoints, [new], lambda entity: True).endpoints == (new,)
