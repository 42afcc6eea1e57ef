"""Run-time endpoints beside declared ones."""

from __future__ import annotations

import pytest

from serve_app.endpoints.beside import Beside
from serve_app.endpoints.endpoint import Endpoint, Kind, ServedEntity

DECLARED = Endpoint(name="declared", served_entities=(ServedEntity(model="a"),))


def bought(name: str, app: str) -> Endpoint:
    entity = ServedEntity(model="a", app=app, max_provisioned_throughput=1)
    return Endpoint(name=name, kind=Kind.PROVISIONED, served_entities=(entity,))


def shared(name: str, model: str = "a", app: str = "") -> Endpoint:
    return Endpoint(name=name, served_entities=(ServedEntity(model=model, app=app),))


def beside(*run_time: Endpoint) -> Beside:
    found = Beside()
    found.declare([DECLARED])
    changes = found.change({endpoint.name: endpoint for endpoint in run_time})
    assert changes.keys() == found.run_time
    return found


def test_what_fits_comes_after_what_is_declared() -> None:
    found = beside(bought("mine", "rt-mine-r1"), shared("shared"))
    assert list(found.endpoints) == ["declared", "mine", "shared"]
    assert found.left_out == {}


def test_what_does_not_fit_is_left_out_alone() -> None:
    other = bought("other", "rt-other-r1")
    found = beside(shared("declared", "b"), bought("mine", "model-a"), other)
    assert dict(found.endpoints) == {"declared": DECLARED, "other": other}
    assert found.left_out["declared"] == "the deploy file declares an endpoint of this name"
    assert "bought throughput needs an application of its own" in found.left_out["mine"]


def test_an_entity_of_another_model_than_its_application_has_is_left_out() -> None:
    found = beside(shared("one", "b", "app"), shared("two", "c", "app"))
    assert "serves 'b'" in found.left_out["two"]


def test_a_change_tells_what_changes_and_nothing_else() -> None:
    found = beside(shared("one"), shared("two"))
    new = shared("two", "b")
    assert found.change({"two": new, "three": None}) == {"two": new}
    assert found.change({"two": new}) == {}
    assert found.change({"one": None}) == {"one": None}
    assert found.run_time == {"two"}


def test_what_was_left_out_comes_in_when_there_is_room() -> None:
    first, second = bought("first", "rt-r1"), bought("second", "rt-r1")
    found = beside(first, second)
    assert found.run_time == {"first"}
    assert found.change({"first": None}) == {"first": None, "second": second}
    assert found.left_out == {}


def test_the_deploy_file_goes_first_whenever_it_changes() -> None:
    mine, theirs = shared("mine"), bought("theirs", "rt-r1")
    found = beside(mine, theirs)
    declared = shared("mine", "b")
    assert found.declare([declared]) == {"declared": None, "mine": declared}
    assert found.left_out.keys() == {"mine"}
    assert found.declare([DECLARED]) == {"declared": DECLARED, "mine": mine}


def test_there_is_an_end_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.endpoints.beside.MAX_ENDPOINTS", 2)
    found = beside(shared("one"), shared("two"))
    assert found.left_out == {"two": "a gateway has at most 2 endpoints"}
