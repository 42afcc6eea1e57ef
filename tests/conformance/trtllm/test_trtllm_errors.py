"""Every row of the table of errors by its name, on each route that takes tensors."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.accounts.keys import new_key
from serve_app.errors import (
    DeadlineExceeded,
    EngineRefused,
    GenerationFailed,
    NumericalError,
    Overloaded,
    PromptTooLong,
    QuotaExceeded,
    ServeError,
    Unavailable,
)
from serve_app.limits import MAX_TENSOR_BODY_BYTES
from serve_app.types import Scope
from tests.conformance.trtllm.asks import IDS, body, error_of
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import gateway

MODEL = "/triton/v2/models/demo"
ROUTES = ["infer", "generate", "generate_stream"]

each_route = pytest.mark.parametrize("what", ROUTES)


def asked(what: str, **values: Any) -> dict[str, Any]:
    return body(**values) if what == "infer" else {"input_ids": IDS, "request_output_len": 3, **values}


@each_route
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"x":NaN}', b"\xef\xbb\xbf{}"])
async def test_e1_a_body_that_is_no_json_object(what: str, content: bytes) -> None:
    async with gateway() as g:
        answer = await g.client.post(f"{MODEL}/{what}", content=content)
    assert (answer.status_code, bool(error_of(answer))) == (400, True)


@each_route
async def test_e2_a_tensor_names_itself_and_its_bounds(what: str) -> None:
    async with gateway() as g:
        answer = await g.post(f"{MODEL}/{what}", asked(what, beam_width=0))
    assert answer.status_code == 400
    assert error_of(answer) == "beam_width: must be an integer from 1 to 64"


@each_route
async def test_e3_an_unknown_model_and_e4_an_unknown_version(what: str) -> None:
    async with gateway() as g:
        for model in ("/triton/v2/models/nobody", f"{MODEL}/versions/9"):
            answer = await g.post(f"{model}/{what}", asked(what))
            assert (answer.status_code, bool(error_of(answer))) == (404, True)


ROWS: dict[str, tuple[ServeError, int]] = {
    "e5": (PromptTooLong("prompt: too long", param="prompt"), 400),
    "e7": (QuotaExceeded("too much"), 429),
    "e8": (Overloaded("full"), 503),
    "e9": (Unavailable("loading"), 503),
    "e10": (DeadlineExceeded("late"), 504),
    "e11": (EngineRefused("no"), 500),
    "e12": (GenerationFailed("failed"), 500),
    "e12-numbers": (NumericalError("failed"), 500),
}


@each_route
@pytest.mark.parametrize(("error", "status"), ROWS.values(), ids=ROWS.keys())
async def test_errors_before_the_first_token(error: ServeError, status: int, what: str) -> None:
    async with gateway(FakeBackend(refuse=error)) as g:
        answer = await g.post(f"{MODEL}/{what}", asked(what))
        assert (answer.status_code, bool(error_of(answer))) == (status, True)
        assert ("retry-after" in answer.headers) is (status in (429, 503))
        await g.check()


@each_route
async def test_e6_a_missing_key_and_one_without_the_right(what: str) -> None:
    (_, line), (scraper, other) = new_key("somebody"), new_key("scraper", [Scope.METRICS])
    async with gateway(keys=f"{line} {other}") as g:
        answer = await g.post(f"{MODEL}/{what}", asked(what))
        assert (answer.status_code, bool(error_of(answer))) == (401, True)
        headers = {"authorization": f"Bearer {scraper}"}
        assert (await g.post(f"{MODEL}/{what}", asked(what), headers=headers)).status_code == 403


@each_route
async def test_e7_a_quota_that_is_used_up(what: str) -> None:
    limited = {"name": "demo", "limits": {"requests_per_minute": 1}}
    async with gateway(endpoints=[limited]) as g:
        assert (await g.post(f"{MODEL}/{what}", asked(what))).status_code == 200
        answer = await g.post(f"{MODEL}/{what}", asked(what))
        assert (answer.status_code, bool(error_of(answer))) == (429, True)


@each_route
async def test_e9_a_model_that_loads(what: str) -> None:
    async with gateway(FakeBackend(loading={"demo"})) as g:
        answer = await g.post(f"{MODEL}/{what}", asked(what))
        assert (answer.status_code, bool(error_of(answer))) == (503, True)


@each_route
async def test_e13_a_wrong_method(what: str) -> None:
    async with gateway() as g:
        answer = await g.client.get(f"{MODEL}/{what}")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert error_of(answer)


@each_route
async def test_e14_a_body_that_is_too_large(what: str) -> None:
    async with gateway() as g:
        answer = await g.client.post(f"{MODEL}/{what}", content=b" " * (MAX_TENSOR_BODY_BYTES + 1))
        assert (answer.status_code, answer.headers["connection"]) == (413, "close")
        assert error_of(answer)


async def test_e15_an_unknown_route() -> None:
    async with gateway() as g:
        answer = await g.post("/triton/v2/nothing", {})
        assert (answer.status_code, bool(error_of(answer))) == (404, True)
