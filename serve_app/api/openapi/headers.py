"""The headers of requests and answers that all routes share, as the OpenAPI document lists them."""

from __future__ import annotations

from typing import Any, Final

from serve_app.limits import MAX_HEADER_ID_CHARS, MAX_MODEL_NAME_CHARS


def _request(name: str, text: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": text,
        "schema": {"type": "string", **schema},
    }


def _response(text: str, kind: str = "string") -> dict[str, Any]:
    return {"description": text, "schema": {"type": kind}}


REQUEST_HEADERS: Final[dict[str, dict[str, Any]]] = {
    "X-Request-Id": _request(
        "X-Request-Id",
        "The client's id of the request, which the answer repeats. A malformed one counts as none.",
        pattern=rf"^[A-Za-z0-9_-]{{1,{MAX_HEADER_ID_CHARS}}}$",
    ),
    "X-Routing-Key": _request(
        "X-Routing-Key",
        "Requests of one key stay on one entity of an A/B split.",
        maxLength=MAX_HEADER_ID_CHARS,
    ),
    "X-Served-Entity": _request(
        "X-Served-Entity",
        "The served entity that answers. Needs a key that may choose.",
        maxLength=MAX_MODEL_NAME_CHARS,
    ),
}

RESPONSE_HEADERS: Final[dict[str, dict[str, Any]]] = {
    "X-Request-Id": _response("The client's id of the request, or the server's own."),
    "served-model-name": _response("The served entity that answered."),
    "X-Gateways-Behind": _response(
        "After a change: how many gateways do not serve by it yet. Without it all of them do."
    ),
    "X-Ignored-Fields": _response("The fields of the request that have no effect here, separated by commas."),
    "X-Clamped-Fields": _response(
        "The length of the answer, where it is less than was asked for: max_tokens=993."
    ),
    "Retry-After": _response("Seconds after which another try may succeed.", "integer"),
    "x-should-retry": _response("false where another try is no use."),
    "WWW-Authenticate": _response("How to authenticate."),
    "Allow": _response("The methods that the route takes."),
}

_OF_STATUS: Final = {
    401: "WWW-Authenticate",
    405: "Allow",
    429: "Retry-After",
    503: "Retry-After",
    529: "Retry-After",
}


def header_names(asks: bool) -> tuple[str, ...]:
    """The request headers of a route; `asks`: whether the route has a body, so that it may call a model."""
    return tuple(REQUEST_HEADERS) if asks else ("X-Request-Id",)


def answer_names(status: int) -> tuple[str, ...]:
    """The headers that an answer of this status may have."""
    found = ["X-Request-Id"]
    if status < 400:
        found += ["served-model-name", "X-Ignored-Fields", "X-Clamped-Fields", "X-Gateways-Behind"]
    if status in _OF_STATUS:
        found.append(_OF_STATUS[status])
    if status == 429 or status >= 500:
        found.append("x-should-retry")
    return tuple(found)
