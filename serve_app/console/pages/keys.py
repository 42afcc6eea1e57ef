"""API keys: their list, a form that creates a key and shows it once, and forms to change and revoke keys."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from serve_app.console.public_api import ApiError
from serve_app.console.request import console_of
from serve_app.console.templates import render
from serve_app.console.views import keys
from serve_app.console.views.keys import KeyFields, KeyView
from serve_app.console.views.problem import field_in
from serve_app.errors import RouteNotFound

TITLE: Final = "Keys"
SCOPES: Final = frozenset({"manage"})
PATH: Final = "/console/keys"
NEW: Final = "/console/key-new"
ONE: Final = f"{PATH}/{{id}}"
REVOKE: Final = "/console/key-revoke/{id}"
ROTATE: Final = "/console/key-rotate/{id}"
API: Final = "/api/2.0/keys"
ENDPOINTS: Final = "/api/2.0/serving-endpoints"

_NOTICES: Final = {
    "changed": "Key saved. Every gateway has the change.",
    "revoked": "Key revoked. Requests already running will finish.",
}


def routes() -> Iterator[Route]:
    yield Route(PATH, _listed, methods=["GET"])
    yield Route(NEW, _new, methods=["GET"])
    yield Route(NEW, _create, methods=["POST"])
    yield Route(REVOKE, _revoke, methods=["POST"])
    yield Route(ROTATE, _rotate, methods=["POST"])
    yield Route(ONE, _one, methods=["GET"])
    yield Route(ONE, _change, methods=["POST"])


async def _listed(request: Request, problem: ApiError | None = None) -> Response:
    shows_all = request.query_params.get("all") == "on"
    found, refused = await console_of(request).api.found(API, all=shows_all)
    answer = found or {}
    return render(
        request,
        "keys/list.html",
        problem or refused,
        keys=keys.key_views(answer, _now_ms()),
        declared=answer.get("declared_keys", []),
        shows_all=shows_all,
        graces=keys.GRACES,
        notice=_NOTICES.get(request.query_params.get("done", ""), "") or answer.get("notice", ""),
    )


async def _new(request: Request) -> Response:
    return await _form(request, keys.new_fields())


async def _create(request: Request) -> Response:
    """The key is only in this answer, which browsers do not cache."""
    console = console_of(request)
    try:
        made = (await console.api.change("POST", API, keys.creation_body(console.form))).body
    except ApiError as error:
        return await _form(request, keys.fields_in(console.form), problem=error)
    return _shown_once(request, made)


async def _rotate(request: Request) -> Response:
    console = console_of(request)
    path = f"{API}/{request.path_params['id']}/rotate"
    try:
        made = (await console.api.change("POST", path, keys.rotation_body(console.form))).body
    except ApiError as error:
        return await _listed(request, error)
    return _shown_once(request, made, keys.GRACES.get(console.form.text("grace"), ""))


def _shown_once(request: Request, made: Mapping[str, Any], former_ends: str = "") -> Response:
    key = keys.key_view(made["key_info"], _now_ms())
    return render(request, "keys/created.html", secret=made["key"], key=key, former_ends=former_ends)


async def _one(request: Request) -> Response:
    key = await _found(request)
    return await _form(request, keys.fields_of(key), key)


async def _change(request: Request) -> Response:
    console, key = console_of(request), await _found(request)
    try:
        await console.api.change("PATCH", f"{API}/{key.id}", keys.change_body(console.form))
    except ApiError as error:
        return await _form(request, keys.fields_in(console.form), key, error)
    return RedirectResponse(f"{PATH}?done=changed", HTTPStatus.SEE_OTHER)


async def _revoke(request: Request) -> Response:
    try:
        await console_of(request).api.change("DELETE", f"{API}/{request.path_params['id']}")
    except ApiError as error:
        return await _listed(request, error)
    return RedirectResponse(f"{PATH}?done=revoked", HTTPStatus.SEE_OTHER)


async def _form(
    request: Request, fields: KeyFields, key: KeyView | None = None, problem: ApiError | None = None
) -> Response:
    """The form that makes a key, or changes `key`."""
    listed, _ = await console_of(request).api.found(ENDPOINTS)
    known = [] if listed is None else [each["name"] for each in listed["endpoints"]]
    return render(
        request,
        "keys/form.html",
        problem,
        key=key,
        fields=fields,
        scopes=keys.SCOPES,
        endpoints=sorted({*known, *fields.endpoints}),
        wrong=None if problem is None else field_in(problem.message),
    )


async def _found(request: Request) -> KeyView:
    """The key that the path names. Raises ApiError, or RouteNotFound if there is none."""
    id = request.path_params["id"]
    answer = (await console_of(request).api.get(API, all=True)).body
    for key in keys.key_views(answer, _now_ms()):
        if key.id == id:
            return key
    raise RouteNotFound("there is no such key")


def _now_ms() -> int:
    return round(time.time() * 1000)
