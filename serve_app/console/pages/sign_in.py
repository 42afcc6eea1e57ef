"""Signing in with an API key, and out again."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from serve_app.console.public_api import ApiError
from serve_app.console.request import ME, console_of
from serve_app.console.session import Sessions, ended, is_secure
from serve_app.console.templates import render

PATH: Final = "/console/sign-in"
OUT: Final = "/console/sign-out"
HOME: Final = "/console"
MAX_KEY_CHARS: Final = 512


def routes(sessions: Sessions) -> list[Route]:
    """The page, its form, and the form for signing out. They need no signed-in session."""

    async def page(request: Request) -> Response:
        return render(request, "sign_in.html", next=_place(request.query_params.get("next")))

    async def sign_in(request: Request) -> Response:
        console = console_of(request)
        key, place = console.form.text("key"), _place(console.form.text("next"))
        try:
            if not key.isascii() or not key.isprintable() or len(key) > MAX_KEY_CHARS:
                key = "?"  # the message is the API's error for an unknown key
            await console.api.with_key(key or "?").get(ME)
        except ApiError as error:
            return render(request, "sign_in.html", error, next=place)
        answer = RedirectResponse(place, HTTPStatus.SEE_OTHER)
        # A new session, so that a token from before signing in is no longer valid.
        answer.headers["set-cookie"] = sessions.cookie(sessions.begin(key), secure=is_secure(request))
        return answer

    async def sign_out(request: Request) -> Response:
        answer = RedirectResponse(PATH, HTTPStatus.SEE_OTHER)
        answer.headers["set-cookie"] = ended(secure=is_secure(request))
        return answer

    return [
        Route(PATH, page, methods=["GET"]),
        Route(PATH, sign_in, methods=["POST"]),
        Route(OUT, sign_out, methods=["POST"]),
    ]


def _place(given: str | None) -> str:
    """Where to go after signing in: always a page of the console, whatever address the link gives."""
    is_ours = given is not None and (given == HOME or given.startswith(f"{HOME}/"))
    return given if is_ours and given is not None and given.isprintable() and "\\" not in given else HOME
