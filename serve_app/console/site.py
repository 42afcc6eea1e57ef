"""The console's own paths: files, sessions, pages, and the public API for the pages' scripts.

The origin and session of every request are checked, and for a change also the session's token; every answer
has the policy's headers. A page's handler sees only requests that passed all these checks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.config import ConsoleConfig
from serve_app.console.assets import STATIC, Assets
from serve_app.console.forms import Form, read_form
from serve_app.console.pages import PAGES, sign_in
from serve_app.console.public_api import ApiError, PublicApi, forward
from serve_app.console.request import ME, ConsoleRequest, Visitor, console_of
from serve_app.console.secret import load_secret
from serve_app.console.security_policy import (
    CSRF_FIELD,
    CSRF_HEADER,
    SAFE_METHODS,
    Answer,
    check_local,
    check_origin,
    check_token,
)
from serve_app.console.session import COOKIE, Session, Sessions, ended, is_secure
from serve_app.console.templates import MenuItem, Templates, render
from serve_app.console.views.problem import Problem
from serve_app.errors import (
    BodyTooLarge,
    InvalidBody,
    PermissionDenied,
    ReadTimeout,
    RouteNotFound,
    ServeError,
)

logger = logging.getLogger(__name__)

PREFIX: Final = "/console"
API: Final = f"{PREFIX}/api/"
INTERNAL: Final = "an internal error occurred; the gateway's log has more"
_STATUSES: Final[Mapping[type[ServeError], int]] = {
    InvalidBody: 400,
    PermissionDenied: 403,
    RouteNotFound: 404,
    ReadTimeout: 408,
    BodyTooLarge: 413,
}
MENU: Final = tuple(MenuItem(page.TITLE, page.PATH, page.SCOPES) for page in PAGES)


class SignInNeeded(Exception):
    """The request has no session with a valid key. `why`: the API's message; "" if there was no session."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


class Site:
    """An ASGI app for every path of the console."""

    def __init__(
        self,
        api: ASGIApp,
        config: ConsoleConfig,
        peer_of: Callable[[Scope], str | None],
        environ: Mapping[str, str],
        allowed_hosts: Collection[str] = (),
    ) -> None:
        self._api = api
        self._peer_of = peer_of
        self._allowed_hosts = allowed_hosts
        self._sessions = Sessions(load_secret(environ), round(config.session_hours * 3600))
        self._assets = Assets()
        self._templates = Templates(self._assets, MENU)
        routes = [route for page in PAGES for route in page.routes()]
        entrance = sign_in.routes(self._sessions)
        first = Route(PREFIX, _first, methods=["GET"])
        self._pages = Router([first, *entrance, *routes], redirect_slashes=False, default=_not_found)
        self._open = frozenset(route.path for route in entrance)

    @property
    def routes(self) -> list[Route]:
        """Every page and form."""
        return [route for route in self._pages.routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        request.state.templates = self._templates
        answer = Answer(send)
        is_api = scope["path"].startswith(API)
        try:
            if scope["path"].startswith(STATIC):
                await self._assets(scope, receive, answer.send)
            elif is_api:
                await self._forward(request, answer.send)
            else:
                await self._page(request, answer.send)
        except SignInNeeded as needed:
            await _to_sign_in(request, needed, is_api)(scope, receive, answer.send)
        except Exception as error:
            if answer.has_begun:
                raise  # the answer has begun: the server closes the connection
            await self._problem(request, error, is_api)(scope, receive, answer.send)

    async def _forward(self, request: Request, send: Send) -> None:
        """The public API below `/console/api`, for the pages' scripts."""
        check_origin(request)
        session = self._sessions.read(request.cookies.get(COOKIE))
        if session is None:
            raise SignInNeeded
        if not session.key:
            check_local(request, self._peer_of, self._allowed_hosts)
        if request.method not in SAFE_METHODS:
            check_token(session, request.headers.get(CSRF_HEADER))
        path = request.scope["path"].removeprefix(API.rstrip("/"))
        await forward(self._api, request.scope, request.receive, send, path, session.key)

    async def _page(self, request: Request, send: Send) -> None:
        check_origin(request)
        known = self._sessions.read(request.cookies.get(COOKIE))
        session = known or self._sessions.begin("")
        api = PublicApi(self._api, request.scope, session.key)
        is_open = request.scope["path"] in self._open
        caller = None if is_open else await self._enter(request, api, session)
        form = Form({})
        if request.method not in SAFE_METHODS:
            form = await read_form(request)
            check_token(session, request.headers.get(CSRF_HEADER) or form.text(CSRF_FIELD))
        request.state.console = ConsoleRequest(api, session, caller, form, self._sessions.vault(session))
        if known is None:
            send = _with_cookie(send, self._sessions.cookie(session, secure=is_secure(request)))
        await self._pages(request.scope, request.receive, send)

    async def _enter(self, request: Request, api: PublicApi, session: Session) -> Visitor:
        """The visitor of a page.

        Raises SignInNeeded or ApiError; PermissionDenied if the server has no keys and another machine asks.
        """
        answer = await api.ask("GET", ME)
        if answer.status == HTTPStatus.UNAUTHORIZED:
            raise SignInNeeded(ApiError(answer).message if session.key else "")
        if not session.key:
            check_local(request, self._peer_of, self._allowed_hosts)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise ApiError(answer)
        return Visitor.of(answer.body)

    def _problem(self, request: Request, error: Exception, is_api: bool) -> Response:
        """The answer to a refusal: JSON for a script, a page fragment for htmx, and a whole page for all
        others."""
        problem = problem_of(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("the console failed at %s", request.scope["path"], exc_info=error)
        title = HTTPStatus(problem.status).phrase
        if is_api:
            body = {"error_code": HTTPStatus(problem.status).name, "message": problem.message}
            return JSONResponse(body, problem.status)
        if not hasattr(request.state, "console"):
            nobody = Session("", "")
            request.state.console = ConsoleRequest(PublicApi(self._api, request.scope, ""), nobody, None)
        name = "_problem.html" if "hx-request" in request.headers else "problem.html"
        return render(request, name, problem, title=title)


def _to_sign_in(request: Request, needed: SignInNeeded, is_api: bool) -> Response:
    answer: Response
    if is_api:
        body = {"error_code": "UNAUTHENTICATED", "message": needed.why or "sign in to the console first"}
        answer = JSONResponse(body, HTTPStatus.UNAUTHORIZED)
    elif (place := request.headers.get("hx-current-url")) is not None:  # part of that page was requested
        headers = {"hx-redirect": _sign_in_for(urlsplit(place))}
        answer = Response(status_code=HTTPStatus.UNAUTHORIZED, headers=headers)
    else:
        place = str(request.url) if request.method in SAFE_METHODS else ""
        answer = RedirectResponse(_sign_in_for(urlsplit(place)), HTTPStatus.SEE_OTHER)
    if needed.why:
        answer.headers["set-cookie"] = ended(secure=is_secure(request))
    return answer


def _sign_in_for(page: SplitResult) -> str:
    """The path of the sign-in page, which then leads to `page`."""
    place = page.path + (f"?{page.query}" if page.query else "")
    return f"{sign_in.PATH}?next={quote(place)}" if place else sign_in.PATH


def _with_cookie(send: Send, cookie: str) -> Send:
    """Wrap `send` to add a cookie, unless the answer sets one itself."""

    async def send_with_cookie(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", [])
            if not any(name == b"set-cookie" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"set-cookie", cookie.encode())]}
        await send(message)

    return send_with_cookie


async def _first(request: Request) -> Response:
    """Redirect to the first page of the menu that the key may see."""
    places = [item.path for item in MENU if item.is_for(console_of(request))]
    return RedirectResponse(next(iter(places), MENU[0].path), HTTPStatus.SEE_OTHER)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise RouteNotFound("the console has no such page")


def problem_of(error: Exception) -> ApiError | Problem:
    """What a page says about `error`: the API's message, or the console's if the console itself refused."""
    match error:
        case ApiError():
            return error
        case HTTPException():  # from the router: the page does not have this method
            return Problem(error.detail, status=error.status_code)
        case ServeError() if type(error) in _STATUSES:
            return Problem(error.message, status=_STATUSES[type(error)])
        case _:
            return Problem(INTERNAL, status=500)
