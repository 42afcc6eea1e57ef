"""Endpoints that were made at run time beside those of a deploy file, which go first. Pure logic."""

from __future__ import annotations

from collections.abc import Iterable

from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.endpoint import Endpoint


def beside(declared: Catalogue, run_time: Iterable[Endpoint]) -> tuple[Catalogue, dict[str, str]]:
    """`declared` and all of `run_time` that fit, in this order; and of the others, why they do not."""
    left_out: dict[str, str] = {}
    taken = list(declared.endpoints)
    for endpoint in run_time:
        if any(each.name == endpoint.name for each in declared.endpoints):
            left_out[endpoint.name] = "the deploy file declares an endpoint of this name"
            continue
        try:
            Catalogue(endpoints=(*taken, endpoint))
        except ValueError as error:
            left_out[endpoint.name] = str(error)
        else:
            taken.append(endpoint)
    return Catalogue(endpoints=tuple(taken)), left_out
