"""The pages of one endpoint. A refused form is shown again on the page that it was sent from."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.forms import Form
from serve_app.console.pages.endpoints.paths import ONE, api_path, notice_of
from serve_app.console.pages.endpoints.tabs import PARTS, TABS, TabRequest
from serve_app.console.public_api import ApiError
from serve_app.console.request import console_of
from serve_app.console.templates import render
from serve_app.console.views.endpoints import endpoint_view
from serve_app.console.views.problem import Problem, field_in


def routes() -> Iterator[Route]:
    yield Route(ONE, _show, methods=["GET"])


async def _show(request: Request) -> Response:
    tab = request.query_params.get("tab", "overview")
    return await show(request, request.path_params["name"], tab if tab in TABS else "overview")


async def show(
    request: Request, name: str, tab: str, problem: ApiError | Problem | None = None, form: Form | None = None
) -> Response:
    """The page `tab` of the endpoint `name`; if there is a `problem`, the page of the `form` that caused it.

    Raises ApiError for an endpoint that does not exist.
    """
    api = console_of(request).api
    endpoint = (await api.get(api_path(name))).body
    asked = TabRequest(
        api=api,
        name=name,
        endpoint=endpoint,
        view=endpoint_view(endpoint),
        query=request.query_params,
        form=form,
        server=f"{request.url.scheme}://{request.url.netloc}",
        needs_key=not console_of(request).needs_no_key,
    )
    part = None if form is not None else PARTS.get(request.query_params.get("part", ""))
    build, template = part or (TABS[tab][1], f"endpoints/{tab}.html")
    shown = await build(asked)
    problem = problem or shown.refused
    return render(
        request,
        template,
        problem,
        endpoint=asked.view,
        is_part=part is not None,
        tab=tab,
        tabs={name: title for name, (title, _) in TABS.items()},
        notice=notice_of(request),
        wrong=None if problem is None else problem.field or field_in(problem.message),
        **shown.values,
    )
