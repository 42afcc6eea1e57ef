"""Where the pages of endpoints are, and where the API has endpoints. A name may hold slashes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse

LIST: Final = "/console/endpoints"
NEW: Final = "/console/endpoint-new"
ONE: Final = f"{LIST}/{{name:path}}"
FORM: Final = "/console/endpoint"  # of its forms, by what each does
API: Final = "/api/2.0/serving-endpoints"

# What was done -> what the next page says of it.
NOTICES: Final = {
    "created": "The endpoint is made.",
    "updated": "The configuration is accepted.",
    "moved": "The traffic is moved.",
    "rollout": "The rollout has started.",
    "stopped": "The rollout is over, and the former traffic is back.",
    "promoted": "The rollout is over, and its entity has all traffic.",
    "shadowed": "Requests are copied from now on.",
    "unshadowed": "No request is copied any more.",
    "settings": "The settings are in force.",
    "tags": "The tags are saved.",
    "granted": "The grant is in force, within seconds on every gateway.",
    "ungranted": "The grant is taken away, within seconds on every gateway.",
    "deleted": "The endpoint is deleted.",
}


def api_path(name: str, below: str = "") -> str:
    """The API's path of an endpoint, unquoted, or of something `below` it."""
    return f"{API}/{name}/{below}" if below else f"{API}/{name}"


def permissions_path(id: str) -> str:
    """The API's path of the grants of an endpoint, by its id."""
    return f"/api/2.0/permissions/serving-endpoints/{id}"


def page_path(name: str, **query: str) -> str:
    """The page of an endpoint, quoted."""
    path = f"{LIST}/{quote(name)}"
    return f"{path}?{urlencode(query)}" if query else path


def to(place: str) -> RedirectResponse:
    """After a change: a page that may be loaded again without doing it twice."""
    return RedirectResponse(place, HTTPStatus.SEE_OTHER)


def notice_of(request: Request) -> str:
    """What was just done, as the link here says."""
    return NOTICES.get(request.query_params.get("done", ""), "")
