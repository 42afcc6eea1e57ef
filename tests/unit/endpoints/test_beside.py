"""Run-time endpoints beside declared ones."""

from __future__ import annotations

from serve_app.endpoints.beside import beside
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint, Kind, ServedEntity

DECLARED = Endpoint(name="declared", served_entities=(ServedEntity(model="a"),))


def bought(name: str, app: str) -> Endpoint:
    entity = ServedEntity(model="a", app=app, max_provisioned_throughput=1)
    return Endpoint(name=name, kind=Kind.PROVISIONED, served_entities=(entity,))


def test_what_fits_comes_after_what_is_declared() -> None:
    mine = bought("mine", "rt-mine-r1")
    shared = Endpoint(name="shared", served_entities=(ServedEntity(model="a"),))
    both, left_out = beside(Catalogue(endpoints=(DECLARED,)), [mine, shared])
    assert both.endpoints == (DECLARED, mine, shared)
    assert left_out == {}


def test_what_does_not_fit_is_left_out_alone() -> None:
    same_name = Endpoint(name="declared", served_entities=(ServedEntity(model="b"),))
    same_app = bought("mine", "model-a")
    other = bought("other", "rt-other-r1")
    both, left_out = beside(Catalogue(endpoints=(DECLARED,)), [same_name, same_app, other])
    assert both.endpoints == (DECLARED, other)
    assert left_out["declared"] == "the deploy file declares an endpoint of this name"
    assert "bought throughput needs an application of its own" in left_out["mine"]
