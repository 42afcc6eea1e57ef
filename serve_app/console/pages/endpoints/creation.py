"""The form that makes an endpoint."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.forms import Form
from serve_app.console.pages.endpoints.paths import API, NEW, page_path, to
from serve_app.console.public_api import ApiError
from serve_app.console.request import console_of
from serve_app.console.templates import render
from serve_app.console.views import config_form
from serve_app.console.views.endpoint_form import creation_body
from serve_app.console.views.endpoints import known_models
from serve_app.console.views.problem import field_in

_TEXTS = ("name", "description", "tags", "task")


def routes() -> Iterator[Route]:
    yield Route(NEW, _show, methods=["GET"])
    yield Route(NEW, _create, methods=["POST"])


async def _show(request: Request) -> Response:
    return await _form(request, Form({}), [config_form.blank_row()])


async def _create(request: Request) -> Response:
    console = console_of(request)
    try:
        made = await console.api.change("POST", API, creation_body(console.form))
    except ApiError as error:
        rows = config_form.rows_in(console.form) or [config_form.blank_row()]
        return await _form(request, console.form, rows, error)
    return to(page_path(made.body["name"], done="created"))


async def _form(
    request: Request, form: Form, rows: list[config_form.EntityRow], problem: ApiError | None = None
) -> Response:
    listed, _ = await console_of(request).api.found(API)
    return render(
        request,
        "endpoints/new.html",
        problem,
        texts={name: form.text(name) for name in _TEXTS},
        rows=rows,
        blank=config_form.blank_row(len(rows), share=0),
        models=known_models(listed or {}),
        wrong=None if problem is None else field_in(problem.message),
    )
