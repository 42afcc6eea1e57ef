"""The forms of one endpoint; each makes one or two API calls. A refusal is shown on the form's page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_app.console.forms import Form
from serve_app.console.pages.endpoints.one import show
from serve_app.console.pages.endpoints.paths import FORM, LIST, api_path, page_path, permissions_path, to
from serve_app.console.public_api import ApiError, PublicApi
from serve_app.console.request import console_of
from serve_app.console.views import config_form, endpoint_form, grants, rollouts
from serve_app.console.views.problem import Problem


@dataclass(frozen=True, slots=True)
class Change:
    """One submitted form."""

    api: PublicApi
    name: str
    form: Form

    async def endpoint(self) -> dict[str, Any]:
        """The endpoint as the API shows it."""
        found: dict[str, Any] = (await self.api.get(api_path(self.name))).body
        return found


Do = Callable[[Change], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FormRoute:
    """What a form does, the page that it is on, and the notice to show afterwards.

    `do` raises ApiError or Problem.
    """

    do: Do
    tab: str
    done: str

    async def __call__(self, request: Request) -> Response:
        console, name = console_of(request), request.path_params["name"]
        try:
            await self.do(Change(console.api, name, console.form))
        except (ApiError, Problem) as problem:
            return await show(request, name, self.tab, problem, console.form)
        if self.done == "deleted":
            return to(f"{LIST}?done=deleted")
        return to(page_path(name, tab=self.tab, done=self.done))


def routes() -> Iterator[Route]:
    for action, form in FORMS.items():
        yield Route(f"{FORM}/{action}/{{name:path}}", form.__call__, methods=["POST"])


def _call(method: str, below: str, body: Callable[[Form], Any] | None = None) -> Do:
    """One API call at a path below the endpoint's, with the body made from a form."""

    async def do(change: Change) -> None:
        path = api_path(change.name, below)
        await change.api.change(method, path, None if body is None else body(change.form))

    return do


async def _promote(change: Change) -> None:
    config = (await change.endpoint()).get("config") or {}
    body = config_form.promotion_body(config, change.form.text("entity"))
    await change.api.change("PUT", api_path(change.name, "config"), body)


async def _config(change: Change) -> None:
    """Raises Problem if the configuration has changed since the form was made."""
    endpoint = await change.endpoint()
    config = endpoint.get("config") or endpoint.get("pending_config") or {}
    version = str(config.get(config_form.CONFIG_VERSION, 0))
    if change.form.text(config_form.CONFIG_VERSION) != version:
        raise Problem(
            f"version {version} has come into force since you opened this form; "
            "check what you want below, and send it again",
            status=409,
        )
    body = config_form.config_body(change.form, config)
    await change.api.change("PUT", api_path(change.name, "config"), body)


async def _ai_gateway(change: Change) -> None:
    body = endpoint_form.gateway_body(change.form, await change.endpoint())
    await change.api.change("PUT", api_path(change.name, "ai-gateway"), body)


async def _grant(change: Change) -> None:
    path = permissions_path((await change.endpoint())["id"])
    await change.api.change("PATCH", path, grants.grant_body(change.form))


async def _end_grant(change: Change) -> None:
    path = permissions_path((await change.endpoint())["id"])
    former = (await change.api.get(path)).body
    await change.api.change("PUT", path, grants.rest_body(former, change.form))


async def _tags(change: Change) -> None:
    body = endpoint_form.tags_body(change.form, await change.endpoint())
    await change.api.change("PATCH", api_path(change.name, "tags"), body)


async def _delete(change: Change) -> None:
    """Raises Problem unless the endpoint's name was typed."""
    if change.form.text("confirmed") != change.name:
        raise Problem(f"type the name of the endpoint, {change.name}, to delete it", "confirmed")
    await change.api.change("DELETE", api_path(change.name))


FORMS: Final = {
    "traffic": FormRoute(_call("PUT", "config", config_form.traffic_body), "overview", "moved"),
    "promote": FormRoute(_promote, "overview", "moved"),
    "config": FormRoute(_config, "config", "updated"),
    "rollout": FormRoute(_call("POST", "rollout", rollouts.rollout_body), "rollout", "rollout"),
    "rollout-stop": FormRoute(_call("DELETE", "rollout"), "rollout", "stopped"),
    "rollout-promote": FormRoute(_call("POST", "rollout/promote"), "rollout", "promoted"),
    "shadow": FormRoute(_call("PUT", "shadow", rollouts.shadow_body), "rollout", "shadowed"),
    "shadow-end": FormRoute(_call("DELETE", "shadow"), "rollout", "unshadowed"),
    "ai-gateway": FormRoute(_ai_gateway, "settings", "settings"),
    "grant": FormRoute(_grant, "permissions", "granted"),
    "grant-end": FormRoute(_end_grant, "permissions", "ungranted"),
    "tags": FormRoute(_tags, "settings", "tags"),
    "delete": FormRoute(_delete, "settings", "deleted"),
}
