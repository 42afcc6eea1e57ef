"""The table of endpoints, of what the server says and no more."""

import json

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from serve_app.api.directory import Directory
from serve_app.endpoints.catalogue import parse_catalogue
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import fake_app

SPLIT = {
    "name": "assistant",
    "served_entities": [{"model": "demo"}, {"model": "org/other", "name": "b"}],
    "traffic": {"demo": 90, "b": 10},
}


def rows(output):
    return [line.split() for line in output.splitlines()]


def test_each_entity_has_a_line_with_its_traffic(invoke, serve):
    backend = FakeBackend(infos=[model_info(), model_info("org/other")], loading={"org/other"})
    result = invoke(
        "endpoints",
        "--url",
        serve(fake_app(backend, directory=Directory(parse_catalogue({"endpoints": [SPLIT]})))),
    )
    assert result.exit_code == 0
    header, first, second = rows(result.output)
    assert header == ["ENDPOINT", "TASK", "KIND", "CONTEXT", "ENTITY", "MODEL", "TRAFFIC", "READY"]
    assert first == ["assistant", "llm/v1/chat", "pay_per_token", "256", "demo", "demo", "90", "%", "yes"]
    assert second == ["assistant", "llm/v1/chat", "pay_per_token", "256", "b", "org/other", "10", "%", "no"]


def test_json_is_what_the_server_said(invoke, url):
    result = invoke("endpoints", "--url", url, "--format", "json")
    assert [entry["id"] for entry in json.loads(result.stdout)] == ["demo"]


def test_a_server_that_says_less_gets_fewer_columns(invoke, serve):
    async def models(request):
        return JSONResponse(
            {"object": "list", "data": [{"id": "a\x1b[31m", "object": "model"}, {"id": "bb"}]}
        )

    result = invoke("endpoints", "--url", serve(Starlette(routes=[Route("/v1/models", models)])))
    assert result.output == "ENDPOINT\na[31m\nbb\n"


def test_nothing_to_list_is_said(invoke, serve):
    result = invoke("endpoints", "--url", serve(fake_app(FakeBackend(infos=[]))))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "serve-app health" in result.stderr
