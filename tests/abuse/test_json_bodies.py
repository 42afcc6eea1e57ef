"""Every hostile body against every route that reads one."""

import json
from typing import cast

import pytest
from starlette.routing import Route

from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.exchange.generate import GenerateRoute
from serve_app.api.protocol.family import CONTINUE
from serve_app.api.route import ByFamily
from serve_app.limits import MAX_ERROR_BYTES
from tests.abuse.corpus import MALFORMED, SECRET, SOUND, with_field
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import filled, gateway

ROUTES = (GenerateRoute, ByFamily, QuestionRoute)


# Below these a body may be empty, and says next to nothing; see test_tensors.
REPOSITORY = "/v2/repository/"
MANAGEMENT = "/api/2.0/"
FEEDBACK = "/feedback"  # the route of management that is not below it


async def post_routes(g):
    """All routes of models with a body, found in the app itself."""
    paths = [filled(route.path) for route in g.app.routes if "POST" in route.methods]
    return [path for path in paths if not is_other(path)]


def is_other(path):
    return path.startswith((REPOSITORY, MANAGEMENT)) or path.endswith(FEEDBACK)


def management_routes(g):
    """Method and path of every route that changes something at run time."""
    return [
        (method, filled(route.path))
        for route in g.app.routes
        for method in sorted(route.methods & {"POST", "PUT", "PATCH"})
        if route.path.startswith(MANAGEMENT) or route.path.endswith(FEEDBACK)
    ]


def check_refused(path, answer):
    """The status and the shape of a wrong body in the protocol of the route."""
    error = json.loads(answer.content)
    is_continue = path in CONTINUE or (path.startswith("/v2/") and not path.endswith("/infer"))
    if is_continue and "error_type" in error:
        assert answer.status_code == 422, (path, answer.text[:300])
        assert set(error) == {"error", "error_type"}
        assert error["error_type"] == "Input Validation Error"
        return
    assert answer.status_code == 400, (path, answer.text[:300])
    if "/v1/messages" in path:
        assert set(error) == {"type", "error"}
        assert set(error["error"]) == {"type", "message"}
        assert error["error"]["type"] == "invalid_request_error"
        return
    if path.startswith(("/serving-endpoints/", "/ai-gateway/")):
        assert set(error) == {"error_code", "message", "error"}
        assert error["error_code"] in ("BAD_REQUEST", "INVALID_PARAMETER_VALUE")
        return
    if path.startswith("/v3/") or (path.startswith("/v2/") and not path.endswith("/stopInfer")):
        assert set(error) == {"error"}
        assert isinstance(error["error"], str)
        return
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["type"] == "invalid_request_error"


async def test_the_routes_are_found():
    async with gateway() as g:
        paths = await post_routes(g)
        apps = [
            getattr(route.app, "_app", None)
            for route in cast(list[Route], g.app.routes)
            if "POST" in (route.methods or ()) and not is_other(route.path)
        ]
        generating = [app for app in apps if isinstance(app, ROUTES)]
        assert len(paths) == len(generating)
        assert "/v1/chat/completions" in paths


@pytest.mark.parametrize(("name", "body"), MALFORMED, ids=[name for name, _ in MALFORMED])
async def test_hostile_bodies_get_a_short_400_in_the_routes_own_shape(name, body):
    async with gateway() as g:
        for path in await post_routes(g):
            answer = await g.client.post(path, content=body)
            check_refused(path, answer)
            assert len(answer.content) < MAX_ERROR_BYTES
            assert SECRET not in answer.text
        assert not g.backend.requests
        await g.check()


@pytest.mark.parametrize(("name", "body"), MALFORMED, ids=[name for name, _ in MALFORMED])
async def test_hostile_bodies_change_nothing_at_run_time(name, body):
    management = FakeManagement()
    async with gateway(management=management) as g:
        routes = management_routes(g)
        assert len(routes) > 15
        for method, path in routes:
            answer = await g.client.request(method, path, content=body)
            assert answer.status_code == 400, (method, path, answer.text[:300])
            assert set(json.loads(answer.content)) == {"error_code", "message", "error"}
            assert len(answer.content) < MAX_ERROR_BYTES
            assert SECRET not in answer.text
        await g.check()


@pytest.mark.parametrize(("name", "body"), SOUND, ids=[name for name, _ in SOUND])
async def test_odd_but_sound_bodies_are_served(name, body):
    async with gateway() as g:
        for path in await post_routes(g):
            if path.startswith(("/v2/", "/serving-endpoints/", "/ai-gateway/")) or "completions" not in path:
                continue  # these bodies are not theirs; see test_mindie_bodies and test_databricks_bodies
            answer = await g.client.post(path, content=body)
            assert answer.status_code == 200, answer.text[:300]
            assert sum(len(k) + len(v) for k, v in answer.headers.items()) < 2_000
        assert all(request.n == 1 for request in g.backend.requests)
        await g.check()


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-encoding": "gzip"},
        {"content-encoding": "deflate, gzip"},
        {"content-length": "x"},
    ],
)
async def test_bodies_that_claim_to_be_something_else_are_refused(headers):
    async with gateway(FakeBackend()) as g:
        for path in await post_routes(g):
            check_refused(path, await g.client.post(path, content=with_field('"n":1'), headers=headers))
        await g.check()
