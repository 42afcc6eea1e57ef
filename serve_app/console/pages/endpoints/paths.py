"""The paths of the endpoints' pages, and of endpoints in the API. A name may contain slashes."""

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

# What was done -> the notice on the next page.
NOTICES: Final = {
    "created": "Endpoint created.",
    "updated": "Configuration accepted.",
    "moved": "Traffic moved.",
    "rollout": "Rollout started.",
    "stopped": "Rollout stopped. The former traffic split is back.",
    "promoted": "Rollout promoted. Its entity has all traffic.",
    "shadowed": "Shadow traffic started.",
    "unshadowed": "Shadow traffic stopped.",
    "settings": "Settings saved.",
    "tags": "Tags saved.",
    "granted": "Permission granted.",
    "ungranted": "Permission removed.",
    "deleted": "Endpoint deleted.",
}


def api_path(name: str, below: str = "") -> str:
    """The unquoted API path of an endpoint, or of the part `below` it."""
    return f"{API}/{name}/{below}" if below else f"{API}/{name}"


def permissions_path(id: str) -> str:
    """The API path of an endpoint's grants, by the endpoint's id."""
    return f"/api/2.0/permissions/serving-endpoints/{id}"


def page_path(name: str, **query: str) -> str:
    """The path of an endpoint's page, quoted."""
    path = f"{LIST}/{quote(name)}"
    return f"{path}?{urlencode(query)}" if query else path


def to(place: str) -> RedirectResponse:
    """Redirect to a page after a change, so that reloading does not repeat the change."""
    return RedirectResponse(place, HTTPStatus.SEE_OTHER)


def notice_of(request: Request) -> str:
    """The notice about what was just done, taken from the link to this page."""
    return NOTICES.get(request.query_params.get("done", ""), "")
