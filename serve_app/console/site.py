"""The console's own paths: files, sessions, pages, and the public API for the scripts of pages.

What every request passes: the policy's headers, the check of its origin, its session, and for a change the
session's token. A page's handler sees only requests that passed all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.config import ConsoleConfig
from serve_app.console.assets import STATIC, Assets
from serve_app.console.forms import Form, read_form
from serve_app.console.pages import PAGES, sign_in
from serve_app.console.policy import (
    CSRF_FIELD,
    CSRF_HEADER,
    SAFE_METHODS,
    check_local,
    check_origin,
    check_token,
    guarded,
)
from serve_app.console.public_api import ApiError, PublicApi, forward
from serve_app.console.request import ConsoleRequest, Visitor
from serve_app.console.secret import load_secret
from serve_app.console.session import COOKIE, Session, Sessions, ended, is_secure
from serve_app.console.templates import Templates, render
from serve_app.errors import (
    BodyTooLarge,
    InvalidBody,
    MethodNotAllowed,
    PermissionDenied,
    ReadTimeout,
    RouteNotFound,
    ServeError,
)

logger = logging.getLogger(__name__)

API: Final = "/console/api/"
ME: Final = "/api/2.0/preview/scim/v2/Me"
_STATUSES: Final[Mapping[type[Exception], int]] = {
    InvalidBody: 400,
    PermissionDenied: 403,
    RouteNotFound: 404,
    MethodNotAllowed: 405,
    ReadTimeout: 408,
    BodyTooLarge: 413,
}


class SignInNeeded(Exception):
    """The request has no session whose key is good. `why`: the API's words; "" where there was none."""

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
    ) -> None:
        self._api = api
        self._peer_of = peer_of
        self._sessions = Sessions(load_secret(environ), round(config.session_hours * 3600))
        self._assets = Assets()
        self._templates = Templates(self._assets, tuple((page.TITLE, page.PATH) for page in PAGES))
        routes = [route for page in PAGES for route in page.routes()]
        entrance = sign_in.routes(self._sessions)
        self._pages = Router([*entrance, *routes], redirect_slashes=False, default=_not_found)
        self._open = frozenset(route.path for route in entrance)

    @property
    def routes(self) -> list[Route]:
        """Every page and form."""
        return [route for route in self._pages.routes if isinstance(route, Route)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        send = guarded(send)
        is_api = scope["path"].startswith(API)
        try:
            if scope["path"].startswith(STATIC):
                await self._assets(scope, receive, send)
            elif is_api:
                await self._forward(request, send)
            else:
                await self._page(request, send)
        except SignInNeeded as needed:
            await _to_sign_in(request, needed, is_api)(scope, receive, send)
        except (ServeError, ApiError, HTTPException) as error:
            await self._problem(request, error, is_api)(scope, receive, send)

    async def _forward(self, request: Request, send: Send) -> None:
        """The public API below `/console/api`, for scripts of pages."""
        check_origin(request)
        session, _ = await self._begin(request)
        if request.method not in SAFE_METHODS:
            check_token(session, request.headers.get(CSRF_HEADER))
        path = request.scope["path"].removeprefix(API.rstrip("/"))
        await forward(self._api, request.scope, request.receive, send, path, session.key)

    async def _page(self, request: Request, send: Send) -> None:
        check_origin(request)
        is_open = request.scope["path"] in self._open
        session, fresh = await self._begin(request, is_open=is_open)
        api = PublicApi(self._api, request.scope, session.key)
        caller = None if is_open else await _visitor(api)
        form = Form({})
        if request.method not in SAFE_METHODS:
            form = await read_form(request)
            check_token(session, request.headers.get(CSRF_HEADER) or form.text(CSRF_FIELD))
        request.state.templates = self._templates
        request.state.console = ConsoleRequest(api, session, caller, form)
        await self._pages(request.scope, request.receive, _with_cookie(send, fresh))

    async def _begin(self, request: Request, *, is_open: bool = False) -> tuple[Session, str | None]:
        """The session of a request, and the cookie that begins it if it is new.

        Raises SignInNeeded, or PermissionDenied for a server without keys that is asked from elsewhere.
        """
        session = self._sessions.read(request.cookies.get(COOKIE))
        if session is not None and (session.key or is_open):
            return session, None
        if not is_open:
            answer = await PublicApi(self._api, request.scope, "").ask("GET", ME)
            if answer.status == HTTPStatus.UNAUTHORIZED:
                raise SignInNeeded
            check_local(request, self._peer_of)
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise ApiError(answer)
            if session is not None:
                return session, None
        session = self._sessions.begin("")
        return session, self._sessions.cookie(session, secure=is_secure(request))

    def _problem(self, request: Request, error: Exception, is_api: bool) -> Response:
        """The answer to a refusal: JSON for a script, a part of a page for htmx, a page for all others."""
        if isinstance(error, ApiError):
            status, message = error.status, error.message
        elif isinstance(error, HTTPException):
            status, message = error.status_code, error.detail
        else:
            status, message = _STATUSES.get(type(error), 500), str(error)
        if is_api:
            return JSONResponse({"error_code": HTTPStatus(status).name, "message": message}, status)
        request.state.templates = self._templates
        if not hasattr(request.state, "console"):
            nobody = Session("", "")
            request.state.console = ConsoleRequest(PublicApi(self._api, request.scope, ""), nobody, None)
        name = "_problem.html" if "hx-request" in request.headers else "problem.html"
        return render(request, name, status, problem=error, title=HTTPStatus(status).phrase)


async def _visitor(api: PublicApi) -> Visitor:
    """Raises SignInNeeded for a key that is not good any more."""
    answer = await api.ask("GET", ME)
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise SignInNeeded(ApiError(answer).message)
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise ApiError(answer)
    return Visitor.of(answer.body)


def _to_sign_in(request: Request, needed: SignInNeeded, is_api: bool) -> Response:
    if is_api:
        told = {"error_code": "UNAUTHENTICATED", "message": needed.why or "sign in to the console first"}
        return JSONResponse(told, HTTPStatus.UNAUTHORIZED)
    place = request.url.path if request.method in SAFE_METHODS else ""
    to = f"{sign_in.PATH}?next={quote(place)}" if place else sign_in.PATH
    if "hx-request" in request.headers:
        answer = Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"hx-redirect": to})
    else:
        answer = RedirectResponse(to, HTTPStatus.SEE_OTHER)
    if needed.why:
        answer.headers["set-cookie"] = ended(secure=is_secure(request))
    return answer


def _with_cookie(send: Send, cookie: str | None) -> Send:
    """`send` with a cookie, unless the answer has one of its own."""
    if cookie is None:
        return send

    async def send_with_cookie(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", [])
            if not any(name == b"set-cookie" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"set-cookie", cookie.encode())]}
        await send(message)

    return send_with_cookie


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise RouteNotFound("the console has no such page")
