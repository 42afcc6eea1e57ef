"""Every row of the table of errors that generate, generate_stream and stopInfer can meet."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import ServeError
from serve_app.limits import MAX_BODY_BYTES
from serve_app.types import Scope
from tests.conformance.mindie_errors import MALFORMED, ROWS, told
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import gateway

MODEL = "/v2/models/demo"
PATHS = [f"{MODEL}/generate_stream", f"{MODEL}/generate"]
INVALID = "Input Validation Error"

each_route = pytest.mark.parametrize("path", PATHS)


def body(**parameters: Any) -> dict[str, Any]:
    return {"text_input": "The tide", "parameters": parameters}


@pytest.mark.parametrize("path", [*PATHS, f"{MODEL}/stopInfer"])
@pytest.mark.parametrize("raw", MALFORMED)
async def test_e1_a_body_that_is_no_json_object(path: str, raw: bytes) -> None:
    async with gateway() as g:
        answer = await g.client.post(path, content=raw, headers={"x-api-dialect": "mindie"})
        told(answer, 422, INVALID, "JSON")


@each_route
async def test_e1_what_is_no_json_object_is_mindies_without_a_word(path: str) -> None:
    async with gateway() as g:
        for raw in (b"", b"{", b"[]", b"null"):
            told(await g.client.post(path, content=raw), 422, INVALID, "JSON")


@each_route
async def test_e2_a_field_names_itself_and_its_bounds(path: str) -> None:
    async with gateway() as g:
        answer = await g.post(path, body(typical_p=-1.0))
        told(answer, 422, INVALID, "parameters.typical_p: must be a number above 0 and up to 1")


@pytest.mark.parametrize("what", ["generate", "generate_stream", "stopInfer"])
async def test_e3_an_unknown_model_and_e4_an_unknown_version(what: str) -> None:
    async with gateway() as g:
        for model in ("/v2/models/nobody", f"{MODEL}/versions/2", f"{MODEL}/versions/x"):
            told(await g.post(f"{model}/{what}", {**body(), "id": "a"}, headers={"x-api-dialect": "mindie"}),
                 404, "NotFoundError")  # fmt: skip


@each_route
@pytest.mark.parametrize(("error", "status", "kind"), ROWS.values(), ids=ROWS.keys())
async def test_errors_before_the_first_token(error: ServeError, status: int, kind: str, path: str) -> None:
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = await g.post(path, body())
        told(answer, status, kind)
        assert ("retry-after" in answer.headers) is (status in (429, 503))
        await g.check()


@each_route
async def test_e5_a_prompt_of_too_many_characters(path: str) -> None:
    async with gateway(mindie={"max_input_chars": 3}) as g:
        told(await g.post(path, body()), 422, INVALID, "text_input: must be a string of 1 to 3 characters")


@each_route
async def test_e6_a_missing_key_and_one_without_the_right(path: str) -> None:
    (_, line), (scraper, other) = new_key("somebody"), new_key("scraper", [Scope.METRICS])
    async with gateway(keys=f"{line} {other}") as g:
        told(await g.post(path, body()), 401, "Unauthorized")
        answer = await g.post(path, body(), headers={"authorization": f"Bearer {scraper}"})
        told(answer, 403, "Forbidden")


@each_route
async def test_e7_a_quota_that_is_used_up(path: str) -> None:
    limited = {"name": "demo", "limits": {"requests_per_minute": 1}}
    async with gateway(endpoints=[limited]) as g:
        assert (await g.post(path, body())).status_code == 200
        told(await g.post(path, body()), 429, "Overloaded")


@each_route
async def test_e9_a_model_that_loads(path: str) -> None:
    async with gateway(FakeBackend(loading={"demo"})) as g:
        told(await g.post(path, body()), 503, "Service Unavailable")


@each_route
async def test_e13_a_wrong_method(path: str) -> None:
    async with gateway() as g:
        answer = await g.client.get(path)
        told(answer, 405, "Method Not Allowed")
        assert answer.headers["allow"] == "POST"


@each_route
async def test_e14_a_body_that_is_too_large(path: str) -> None:
    async with gateway() as g:
        answer = await g.client.post(
            path, content=b" " * (MAX_BODY_BYTES + 1), headers={"x-api-dialect": "mindie"}
        )
        told(answer, 422, INVALID, f"{MAX_BODY_BYTES} bytes")


async def test_e15_an_unknown_route() -> None:
    async with gateway() as g:
        told(await g.post("/mindie/v2/nothing", body()), 404, "NotFoundError")
