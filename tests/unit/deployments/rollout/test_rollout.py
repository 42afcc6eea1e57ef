"""Steps from what runs to a deploy file: at no time does a gateway route to what is not there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import pytest

from serve_app.deployments.rollout.plan import File, plan, without_place
from serve_app.deployments.rollout.rollout import RolloutFailed, apply

App = dict[str, Any]


def gateway(*apps: str, **args: Any) -> App:
    return {"name": "system", "route_prefix": "/", "args": args, "routes_to": list(apps)}


def model(name: str, serves: str = "", **args: Any) -> App:
    return {"name": name, "route_prefix": None, "args": {"name": serves or name, **args}}


def file(*apps: App) -> File:
    return {"http_options": {"port": 1}, "applications": list(apps)}


def names(deployed: File) -> list[str]:
    return [app["name"] for app in deployed["applications"]]


def routes(deployed: File) -> set[str]:
    (found,) = [app for app in deployed["applications"] if app["name"] == "system"]
    return set(found["routes_to"])


class FakeCluster:
    """Applications as in `ServeCluster`: what is deployed comes up, and gateways follow, some looks later."""

    def __init__(self, running: File, *, fails: str = "", stuck: bool = False) -> None:
        self.deployed = [running]
        self.fails = fails
        self.stuck = stuck
        self.looks = 0
        self.asked = 0

    def running(self) -> File:
        return self.deployed[-1]

    def deploy(self, file: File) -> None:
        self.deployed.append(file)
        self.looks = self.asked = 0

    def states(self) -> Mapping[str, tuple[str, str]]:
        self.looks += 1
        state = "RUNNING" if self.looks > 2 else "DEPLOYING"
        reason = "no room" if self.looks == 2 else ""
        states = {app["name"]: (state, reason) for app in self.running()["applications"]}
        if self.fails in states and self.looks > 2:
            states[self.fails] = ("DEPLOY_FAILED", "ValueError: no such folder")
        return states

    def routed(self, gateways: Iterable[str]) -> frozenset[str] | None:
        assert list(gateways) == ["system"]
        self.asked += 1
        if self.asked == 1:
            return None  # nobody knows yet
        step = -2 if self.stuck or self.asked < 4 else -1
        return frozenset(routes(self.deployed[step]))


def test_a_first_deployment_is_one_step() -> None:
    wanted = file(gateway("a"), model("a"))
    assert [step.file for step in plan(file(), wanted)] == [wanted]


def test_what_did_not_change_is_one_step() -> None:
    wanted = file(gateway("a"), model("a"))
    assert [step.file for step in plan(wanted, wanted)] == [wanted]


def test_a_new_catalogue_alone_is_one_step() -> None:
    running, wanted = file(gateway("a"), model("a")), file(gateway("a", "a"), model("a"))
    assert [step.file for step in plan(running, wanted)] == [wanted]


def test_new_models_come_up_before_the_gateway_hears_of_them() -> None:
    running, wanted = file(gateway("a"), model("a")), file(gateway("a", "b"), model("a"), model("b"))
    first, second = plan(running, wanted)
    assert first.file["applications"] == [gateway("a"), model("a"), model("b")]
    assert first.up == ("b",)
    assert second.file == wanted


def test_models_go_when_no_gateway_routes_to_them() -> None:
    running, wanted = file(gateway("a", "b"), model("a"), model("b")), file(gateway("b"), model("b"))
    first, second = plan(running, wanted)
    assert first.file["applications"] == [gateway("b"), model("b"), model("a")]
    assert first.unrouted == ("a",)
    assert second.file == wanted


def test_one_file_over_another_keeps_both_sets_of_models_in_between() -> None:
    running = file(gateway("a", "x"), model("a"), model("x"))
    wanted = file(gateway("b", "c", max_in_flight=7), model("b"), model("c"))
    first, second, third = plan(running, wanted)
    assert names(first.file) == ["system", "a", "x", "b", "c"]
    assert first.file["applications"][0] == gateway("a", "x")
    assert names(second.file) == ["system", "b", "c", "a", "x"]
    assert second.file["applications"][0] == gateway("b", "c", max_in_flight=7)
    assert third.file == wanted
    assert (first.up, first.unrouted) == (("b", "c"), ())
    assert (second.up, second.unrouted) == (("system", "b", "c"), ("a", "x"))


def test_changed_args_of_a_model_come_before_the_gateway_and_another_model_comes_with_it() -> None:
    running = file(gateway("a", "b"), model("a", "one"), model("b", "two"))
    wanted = file(gateway("a", "b", "b"), model("a", "one", threads=2), model("b", "three"))
    first, second = plan(running, wanted)
    assert first.file["applications"] == [gateway("a", "b"), model("b", "two"), model("a", "one", threads=2)]
    assert first.up == ("a",)
    assert second.file == wanted


def random_file(rng: random.Random) -> File:
    chosen = rng.sample("abcde", rng.randint(1, 5))
    models = [model(name, rng.choice([name, name, "other"]), threads=rng.randint(1, 2)) for name in chosen]
    return file(gateway(*rng.sample(chosen, rng.randint(1, len(chosen))), seed=rng.randint(1, 2)), *models)


@pytest.mark.parametrize("seed", range(200))
def test_no_gateway_ever_routes_to_what_is_not_up(seed: int) -> None:
    rng = random.Random(seed)
    running, wanted = random_file(rng), random_file(rng)
    cluster = FakeCluster(running)
    apply(plan(running, wanted), cluster, lambda line: None, poll_s=0.0, settle_s=0.0)
    assert cluster.deployed[-1] == wanted
    for former, later in pairwise(cluster.deployed):
        # Gateways follow a file some time after it was deployed: until then they route as before.
        assert routes(former) <= set(names(later))
        assert routes(later) <= set(names(former))


def test_a_model_that_fails_leaves_gateways_and_old_models_as_they_are() -> None:
    running, wanted = file(gateway("a"), model("a")), file(gateway("b"), model("b"))
    cluster = FakeCluster(running, fails="b")
    said: list[str] = []
    with pytest.raises(
        RolloutFailed, match=r"application b failed; what served before still does(.|\n)*no such"
    ):
        apply(plan(running, wanted), cluster, said.append, poll_s=0.0, settle_s=0.0)
    (only,) = cluster.deployed[1:]
    assert only["applications"] == [gateway("a"), model("a"), model("b")]
    assert said == ["step 1 of 3: starting b", "b: deploying", "b: deploying: no room"]


def test_a_first_deployment_that_fails_does_not_speak_of_what_served_before() -> None:
    cluster = FakeCluster(file(), fails="a")
    with pytest.raises(RolloutFailed) as caught:
        apply(plan(file(), file(gateway("a"), model("a"))), cluster, lambda line: None, poll_s=0.0)
    assert str(caught.value) == "starting system, a: application a failed.\nValueError: no such folder"


def test_models_that_gateways_still_route_to_are_not_removed() -> None:
    running, wanted = file(gateway("a", "b"), model("a"), model("b")), file(gateway("b"), model("b"))
    cluster = FakeCluster(running, stuck=True)
    with pytest.raises(RolloutFailed, match="gateways still route to a, which therefore stay"):
        apply(plan(running, wanted), cluster, lambda line: None, poll_s=0.0, settle_s=0.0, timeout_s=0.01)
    assert names(cluster.running()) == ["system", "b", "a"]


def test_who_gives_up_leaves_all_as_it_is() -> None:
    running, wanted = file(gateway("a"), model("a")), file(gateway("b"), model("b"))
    cluster = FakeCluster(running)
    with pytest.raises(RolloutFailed, match="starting b: interrupted"):
        apply(plan(running, wanted), cluster, lambda line: None, poll_s=0.0, cancelled=lambda: "interrupted")
    assert names(cluster.running()) == ["system", "a", "b"]


def test_a_model_that_does_not_come_up_ends_the_attempt() -> None:
    running, wanted = file(gateway("a"), model("a")), file(gateway("a"), model("a", threads=2))
    cluster = FakeCluster(running)
    with pytest.raises(RolloutFailed, match="a did not come up in time"):
        apply(plan(running, wanted), cluster, lambda line: None, poll_s=0.0, settle_s=0.0, timeout_s=0.0)


def test_a_replica_that_no_machine_can_have_is_refused_unless_the_cluster_grows() -> None:
    divided = model("divided") | {"deployments": [{"name": "Model", "ray_actor_options": {"num_gpus": 4}}]}
    (said,) = without_place(file(gateway(), divided), [2, 2])
    assert said.startswith("application divided: Model asks for 4 GPUs on one machine, and the machine with")
    assert "control.check_resources: false" in said
    assert not list(without_place(file(gateway(), divided), [2, 4]))
    assert not list(without_place(file(gateway(control={"check_resources": False}), divided), [2, 2]))
