"""What a page says of a failure: the API's own words, or the console's if the console refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException

from serve_app.console.public_api import ApiError
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


@dataclass(frozen=True, slots=True)
class Problem:
    """One failure, as `_problem.html` shows it. An `ApiError` can stand in its place."""

    status: int
    message: str
    field: str | None = None  # of the API's request


def problem_of(error: Exception) -> Problem:
    """The public part of `error`."""
    match error:
        case ApiError():
            return Problem(error.status, error.message, error.field)
        case HTTPException():  # from the router: the page does not have this method
            return Problem(error.status_code, error.detail)
        case ServeError() if type(error) in _STATUSES:
            return Problem(_STATUSES[type(error)], error.message)
        case _:
            return Problem(500, INTERNAL)
