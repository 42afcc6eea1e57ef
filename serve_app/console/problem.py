"""What a page says of a failure: the API's own words, or the console's if the console refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException

from serve_app.console.public_api import ApiError
from serve_app.console.views.problem import Problem
from serve_app.errors import (
    BodyTooLarge,
    InvalidBody,
    PermissionDenied,
    ReadTimeout,
    RouteNotFound,
    ServeError,
)

INTERNAL: Final = "an internal error occurred; the gateway's log has more"
_STATUSES: Final[Mapping[type[ServeError], int]] = {
    InvalidBody: 400,
    PermissionDenied: 403,
    RouteNotFound: 404,
    ReadTimeout: 408,
    BodyTooLarge: 413,
}


def problem_of(error: Exception) -> ApiError | Problem:
    """The public part of `error`."""
    match error:
        case ApiError():
            return error
        case HTTPException():  # from the router: the page does not have this method
            return Problem(error.detail, status=error.status_code)
        case ServeError() if type(error) in _STATUSES:
            return Problem(error.message, status=_STATUSES[type(error)])
        case _:
            return Problem(INTERNAL, status=500)
