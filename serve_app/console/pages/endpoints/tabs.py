"""The contents of each page of an endpoint: the API's answers as values for the page's template. Independent
of routes."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from serve_app.console.forms import Form
from serve_app.console.pages.endpoints.paths import API, api_path, permissions_path
from serve_app.console.playground.snippets import KEY
from serve_app.console.public_api import ApiError, PublicApi
from serve_app.console.views import config_form, endpoint_form, gateway_form, grants, rollouts
from serve_app.console.views.comparison import METRICS, comparison_view, metrics_of
from serve_app.console.views.endpoints import EndpointView, known_models
from serve_app.console.views.loads import load_views
from serve_app.console.views.query import query_view
from serve_app.console.views.requests import log_view, logged_view

LIVE: Final = "/api/2.0/live"
LOGS: Final = {"build": "build-logs", "service": "logs"}  # as the page calls them -> as the API does


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The values of a template, and the API's refusals."""

    values: Mapping[str, Any]
    refused: ApiError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TabRequest:
    """One view of an endpoint's page."""

    api: PublicApi
    name: str
    endpoint: Mapping[str, Any]  # as the API shows it
    view: EndpointView
    query: Mapping[str, str]
    form: Form | None  # a refused form, to be shown as it was sent
    server: str  # the address of this server, as the browser knows it
    needs_key: bool

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The configuration that serves, or if none serves yet, the one that is starting."""
        return self.endpoint.get("config") or self.endpoint.get("pending_config")

    async def ask(self, below: str, **query: Any) -> tuple[Any, ApiError | None]:
        """The JSON at a path below the endpoint's, or None if the API refuses."""
        return await self.api.found(api_path(self.name, below), **query)


async def _overview(asked: TabRequest) -> Shown:
    config = asked.config
    if asked.form is not None:
        return Shown(values={"shares": config_form.share_rows_in(asked.form)})
    return Shown(values={"shares": [] if config is None else config_form.share_rows(config)})


async def _config(asked: TabRequest) -> Shown:
    listed, refused = await asked.api.found(API)
    config = asked.config or {}
    rows = config_form.rows_of(config) if asked.form is None else config_form.rows_in(asked.form)
    return Shown(
        values={
            "rows": rows,
            "blank": config_form.blank_row(len(rows), share=0),
            "models": known_models(listed or {}),
            "config_version": config.get("config_version", 0),
            "described": json.dumps(config, indent=2, ensure_ascii=False) if config else "",
        },
        refused=refused,
    )


async def _rollout(asked: TabRequest) -> Shown:
    found, refused = await asked.ask("rollout")
    if refused is not None and refused.status == HTTPStatus.NOT_FOUND:
        refused = None  # there has been none
    return Shown(
        values={
            "rollout": None if found is None else rollouts.rollout_view(found),
            "fields": rollouts.fields_of(asked.form),
        },
        refused=refused,
    )


async def _comparison(asked: TabRequest) -> Shown:
    metric = asked.query.get("metric") or next(iter(METRICS))
    report, refused = await asked.ask("comparison", metric=metric)
    return Shown(
        values={
            "comparison": None if report is None else comparison_view(report),
            "metrics": metrics_of(report),
            "metric": metric,
        },
        refused=refused,
    )


async def _logs(asked: TabRequest) -> Shown:
    names = asked.view.entity_names
    entity = asked.query.get("entity", "")
    entity = entity if entity in names else next(iter(names), "")
    log = asked.query.get("log", "")
    log = log if log in LOGS else next(iter(LOGS))
    values = {"entity": entity, "log": log, "lines": ""}
    if not entity:
        return Shown(values=values)
    found, refused = await asked.ask(f"served-models/{entity}/{LOGS[log]}")
    return Shown(values=values | {"lines": "" if found is None else found["logs"]}, refused=refused)


async def _query(asked: TabRequest) -> Shown:
    document, refused = await asked.api.found("/openapi.json")
    chosen = asked.query.get("protocol", "")
    view = None
    if document is not None:
        view = query_view(document, asked.endpoint, chosen, asked.server, keys=asked.needs_key)
    return Shown(values={"shown": view, "key_variable": KEY}, refused=refused)


async def _requests(asked: TabRequest) -> Shown:
    """The request that the query names, or else a page of requests; nothing without CAN_MANAGE."""
    query, values = asked.query, {"log": None, "one": None, "failed": asked.query.get("failed") == "on"}
    if not asked.view.may_manage:
        return Shown(values=values)
    if request := query.get("request"):
        found, refused = await asked.ask(f"requests/{request}", date=query.get("date") or None)
        return Shown(values=values | {"one": None if found is None else logged_view(found)}, refused=refused)
    page, refused = await asked.ask(
        "requests", page_token=query.get("after") or None, failed=values["failed"] or None
    )
    return Shown(values=values | {"log": None if page is None else log_view(page)}, refused=refused)


async def _settings(asked: TabRequest) -> Shown:
    form = asked.form or Form({})
    is_fields = gateway_form.FORM in form
    settings = asked.endpoint.get("ai_gateway") or {}
    return Shown(
        values={
            "gateway": gateway_form.fields_in(form) if is_fields else gateway_form.fields_of(settings),
            "form_name": gateway_form.FORM,
            "limit_keys": gateway_form.KEYS,
            "behaviors": gateway_form.BEHAVIORS,
            "is_json": "ai_gateway" in form,
            "gateway_text": form.text("ai_gateway") or endpoint_form.gateway_text(asked.endpoint),
            "tags_text": form.text("tags") or endpoint_form.tags_text(asked.view.tags),
        }
    )


async def _permissions(asked: TabRequest) -> Shown:
    """Nothing if the caller may not manage the endpoint."""
    values: dict[str, Any] = {"grants": [], "levels": {}, "kinds": grants.KINDS}
    values["fields"] = grants.GrantFields() if asked.form is None else grants.fields_in(asked.form)
    if not asked.view.may_manage:
        return Shown(values=values)
    path = permissions_path(asked.view.id)
    found, refused = await asked.api.found(path)
    known, refused_levels = await asked.api.found(f"{path}/permissionLevels")
    values |= {"grants": grants.grant_views(found or {}), "levels": grants.levels_in(known or {})}
    return Shown(values=values, refused=refused or refused_levels)


async def _load(asked: TabRequest) -> Shown:
    """Nothing if the caller may not see metrics."""
    live, _ = await asked.api.found(LIVE, endpoint=asked.name, since=time.time())
    return Shown(values={"loads": load_views(live or {}, asked.name)})


Build = Callable[[TabRequest], Awaitable[Shown]]

# page -> its title, and its values
TABS: Final[Mapping[str, tuple[str, Build]]] = {
    "overview": ("Overview", _overview),
    "query": ("Query", _query),
    "config": ("Configuration", _config),
    "rollout": ("Rollout", _rollout),
    "comparison": ("Comparison", _comparison),
    "requests": ("Requests", _requests),
    "logs": ("Logs", _logs),
    "permissions": ("Permissions", _permissions),
    "settings": ("Settings", _settings),
}
# Parts of pages that pages reload by themselves.
PARTS: Final[Mapping[str, tuple[Build, str]]] = {
    "state": (_overview, "endpoints/_state.html"),
    "load": (_load, "endpoints/_load.html"),
    "rollout": (_rollout, "endpoints/_rollout.html"),
    "log": (_logs, "endpoints/_log.html"),
}
