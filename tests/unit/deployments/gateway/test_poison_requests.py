from dataclasses import replace

import pytest

from serve_app.deployments.gateway.poison_requests import (
    BARREN_DEATHS,
    DEATHS,
    KEPT_S,
    MAX_SUSPECTS,
    MOST_DEATHS,
    PoisonRequests,
)
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
    poison_requests = PoisonRequests()
    for replica in CONDEMNING:
        poison_requests.check(REQUEST)
        poison_requests.blame(REQUEST, replica)
    with pytest.raises(EngineRefused):
        poison_requests.check(RETRY)


def test_two_unlucky_deaths_condemn_nobody() -> None:
    poison_requests = PoisonRequests()
    for replica in "ab":
        poison_requests.blame(REQUEST, replica)
    poison_requests.check(RETRY)
    assert poison_requests.barren_deaths(RETRY) == 2


def test_one_death_with_many_equal_requests_counts_once() -> None:
    poison_requests = PoisonRequests()
    for number in range(20):
        poison_requests.blame(replace(REQUEST, id=str(number)), "a")
    poison_requests.check(REQUEST)


def test_other_requests_are_not_suspected() -> None:
    poison_requests = PoisonRequests()
    for replica in CONDEMNING:
        poison_requests.blame(REQUEST, replica)
    poison_requests.check(replace(REQUEST, prompt=Prompt(text="y")))


def test_who_had_tokens_beside_the_poison_is_not_condemned_with_it() -> None:
    """The poison has some tokens before it kills its first replica; it kills the others at once."""
    poison_requests, innocent = PoisonRequests(), replace(REQUEST, prompt=Prompt(text="y"))
    for replica in "abcd"[:DEATHS]:
        for each in (innocent, REQUEST):
            poison_requests.check(each)
            poison_requests.blame(each, replica, is_barren=each is REQUEST and replica != "a")
    with pytest.raises(EngineRefused):
        poison_requests.check(REQUEST)
    poison_requests.check(innocent)


def test_deaths_without_another_culprit_condemn_in_the_end_whatever_was_made() -> None:
    poison_requests, progressing = PoisonRequests(), replace(REQUEST, prompt=Prompt(text="y"))
    for number in range(DEATHS):
        poison_requests.check(REQUEST)
        poison_requests.blame(REQUEST, f"{number}", is_barren=False)
    with pytest.raises(EngineRefused):
        poison_requests.check(REQUEST)
    for number in range(MOST_DEATHS):  # there is always somebody beside it that seems to do it
        poison_requests.check(progressing)
        for replica in (f"{number}", f"{number}, once more"):
            poison_requests.blame(replace(REQUEST, prompt=Prompt(text=f"{number}")), replica)
        poison_requests.blame(progressing, f"{number}", is_barren=False)
    with pytest.raises(EngineRefused):
        poison_requests.check(progressing)


def test_a_request_that_ended_well_is_cleared() -> None:
    poison_requests = PoisonRequests()
    for replica in CONDEMNING:
        poison_requests.clear(RETRY)
        poison_requests.blame(REQUEST, replica)
    poison_requests.check(REQUEST)


def test_a_verdict_is_forgotten_in_time() -> None:
    clock = Clock()
    poison_requests = PoisonRequests(clock)
    for replica in CONDEMNING:
        poison_requests.blame(REQUEST, replica)
    clock.now = KEPT_S
    poison_requests.check(REQUEST)


def test_the_number_of_suspects_is_bounded() -> None:
    poison_requests = PoisonRequests()
    for number in range(MAX_SUSPECTS + 1):
        for replica in CONDEMNING:
            poison_requests.blame(replace(REQUEST, prompt=Prompt(text=str(number))), replica)
    poison_requests.check(replace(REQUEST, prompt=Prompt(text="0")))
    with pytest.raises(EngineRefused):
        poison_requests.check(replace(REQUEST, prompt=Prompt(text=str(MAX_SUSPECTS))))
