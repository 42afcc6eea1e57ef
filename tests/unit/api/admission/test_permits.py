"""Permits and deadlines."""

import pytest

from serve_app.api.admission.permits import RETRY_ELSEWHERE_S, Admission, BodyBytes, deadline_s
from serve_app.errors import Overloaded, Unavailable


def test_permits_are_refused_at_the_limit_and_come_back():
    admission = Admission(2)
    with admission.permits(2):
        assert admission.in_flight == 2
        with pytest.raises(Overloaded) as caught, admission.permits(1):
            pass
        assert caught.value.retry_after_s == 1.0
        assert admission.in_flight == 2
    admission.check(2)


def test_a_failing_block_gives_its_permits_back():
    admission = Admission(1)
    with pytest.raises(KeyError), admission.permits(1):
        raise KeyError
    assert admission.in_flight == 0


def test_the_shorter_deadline_counts():
    assert [deadline_s(asked, 10.0) for asked in (None, 3.0, 30.0)] == [10.0, 3.0, 10.0]


def test_bytes_are_refused_beyond_the_limit_and_come_back():
    bodies = BodyBytes(most=10, small=3)
    with bodies.lease() as first:
        first.take(4)
        first.take(5)
        with bodies.lease() as second:
            second.take(1)
            assert bodies.held == 10
            with pytest.raises(Overloaded) as caught:
                second.take(3)
            assert caught.value.retry_after_s == 1.0
        assert bodies.held == 9
    assert bodies.held == 0


def test_small_bodies_are_never_refused_for_the_bytes_of_others():
    bodies = BodyBytes(most=10, small=3)
    with bodies.lease() as large, bodies.lease() as small:
        large.take(10)
        small.take(3)
        assert bodies.held == 13
        with pytest.raises(Overloaded):
            small.take(1)


def test_once_closed_nothing_is_admitted_and_what_runs_goes_on() -> None:
    admission = Admission(4)
    with admission.permits(2):
        admission.close()
        with pytest.raises(Unavailable, match="stopping") as caught:
            admission.check()
        assert caught.value.retry_after_s == RETRY_ELSEWHERE_S
        assert admission.in_flight == 2
    assert admission.in_flight == 0
    assert admission.is_closed
