"""Pages as HTML: Jinja2 with every value escaped; a missing name is an error.

The filters in `reading` format numbers, sizes and times for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from serve_app.console import reading
from serve_app.console.assets import Assets
from serve_app.console.public_api import ApiError
from serve_app.console.request import ConsoleRequest, console_of
from serve_app.console.security_policy import CSRF_FIELD
from serve_app.console.views.problem import Problem, is_wrong

FOLDER: Final = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class MenuItem:
    """A page that the menu shows to keys with one of `scopes`."""

    title: str
    path: str
    scopes: frozenset[str]

    def is_for(self, console: ConsoleRequest) -> bool:
        return any(map(console.can, self.scopes))


class Templates:
    """All templates, and the files that they load."""

    def __init__(self, assets: Assets, menu: tuple[MenuItem, ...]) -> None:
        self._jinja = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._jinja.filters.update(reading.FILTERS)
        self._jinja.globals.update(asset=assets.url, menu=menu, is_wrong=is_wrong)

    def page(
        self, request: Request, name: str, problem: ApiError | Problem | None = None, **values: Any
    ) -> HTMLResponse:
        """The template `name` with `values` and those of every page: `console`, `path`, `csrf_field`.

        The status is that of the `problem`, otherwise 200.
        """
        console = console_of(request)
        field = Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, escape(console.csrf))
        known = {"console": console, "path": request.url.path, "csrf_field": field, "problem": problem}
        status = HTTPStatus.OK if problem is None else problem.status
        return HTMLResponse(self._jinja.get_template(name).render(known | values), status)


def render(
    request: Request, name: str, problem: ApiError | Problem | None = None, **values: Any
) -> HTMLResponse:
    """A handler's page: the template `name` in `templates/`, filled with `values`."""
    templates: Templates = request.state.templates
    return templates.page(request, name, problem, **values)
