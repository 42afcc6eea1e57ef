"""FastAPI holds the table of routes, and nothing of it runs for a request."""

from fastapi import FastAPI
from fastapi.routing import APIRoute

from serve_app.api.edge.auth import Scoped
from serve_app.api.ingress import RawRoute
from tests.support.gateway import gateway


async def test_the_app_is_fastapis_and_every_route_is_in_its_table() -> None:
    async with gateway() as at:
        assert isinstance(at.app, FastAPI)
        assert len(at.app.routes) > 50
        assert all(isinstance(route, APIRoute) for route in at.app.routes)


async def test_a_request_is_answered_by_our_own_apps() -> None:
    async with gateway() as at:
        assert (await at.chat()).status_code == 200
        assert (await at.client.get("/nowhere")).status_code == 404
        assert at.app.middleware_stack is None, "FastAPI's own layers were never built"
        for route in at.app.routes:
            assert isinstance(route, RawRoute)
            assert isinstance(route.app, Scoped)


async def test_pages_answer_head_as_they_answer_get() -> None:
    async with gateway() as at:
        assert (await at.client.head("/livez")).status_code == 200
        refused = await at.post("/livez")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_no_document_is_served_by_fastapi_itself() -> None:
    async with gateway() as at:
        assert (at.app.openapi_url, at.app.docs_url, at.app.redoc_url) == (None, None, None)
