from dataclasses import replace

import pytest

from serve_app.deployments.gateway.quarantine import BARREN_DEATHS, KEPT_S, MAX_SUSPECTS, Quarantine
from serve_app.errors import EngineRefused
from serve_app.types import GenerateRequest, Prompt

REQUEST = GenerateRequest(id="1", model="m", prompt=Prompt(text="x"))
RETRY = replace(REQUEST, id="2")
CONDEMNING = "abc"[:BARREN_DEATHS]  # replicas whose deaths are enough


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_deaths_condemn_the_content_whatever_its_id() -> None:
    quarantine = Quarantine()
    for replica in CONDEMNING:
        quarantine.check(REQUEST)
        quarantine.blame(REQUEST, replica)
    with pytest.raises(EngineRefused):
        quarantine.check(RETRY)


def test_two_unlucky_deaths_condemn_nobody() -> None:
    quarantine = Quarantine()
    for replica in "ab":
        quarantine.blame(REQUEST, replica)
    quarantine.check(RETRY)
    assert quarantine.barren_deaths(RETRY) == 2


def test_one_death_with_many_equal_requests_counts_once() -> None:
    quarantine = Quarantine()
    for number in range(20):
        quarantine.blame(replace(REQUEST, id=str(number)), "a")
    quarantine.check(REQUEST)


def test_other_requests_are_not_suspected() -> None:
    quarantine = Quarantine()
    for replica in CONDEMNING:
        quarantine.blame(REQUEST, replica)
    quarantine.check(replace(REQUEST, prompt=Prompt(text="y")))


def test_a_request_that_ended_well_is_cleared() -> None:
    quarantine = Quarantine()
    for replica in CONDEMNING:
        quarantine.clear(RETRY)
        quarantine.blame(REQUEST, replica)
    quarantine.check(REQUEST)


def test_a_verdict_is_forgotten_in_time() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    for replica in CONDEMNING:
        quarantine.blame(REQUEST, replica)
    clock.now = KEPT_S
    quarantine.check(REQUEST)


def test_the_number_of_suspects_is_bounded() -> None:
    quarantine = Quarantine()
    for number in range(MAX_SUSPECTS + 1):
        for replica in CONDEMNING:
            quarantine.blame(replace(REQUEST, prompt=Prompt(text=str(number))), replica)
    quarantine.check(replace(REQUEST, prompt=Prompt(text="0")))
    with pytest.raises(EngineRefused):
        quarantine.check(replace(REQUEST, prompt=Prompt(text=str(MAX_SUSPECTS))))
